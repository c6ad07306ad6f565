"""The fillers: their distributions and shapes, as their formulas say."""

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.filler import BLOCK, Draws, fill
from osucaffe.proto import FillerParameter, parse_text

SHAPE = (200, 50, 5, 4)  # fan in 1,000, fan out 4,000


def values(text: str, shape=SHAPE, seed: int = 1) -> np.ndarray:
    filler = parse_text(text, FillerParameter, "filler")
    return fill(filler, shape, Draws(seed), "here")


def test_none_gives_zeros():
    assert not fill(None, (3, 2), Draws(1)).any()


def test_constant():
    assert np.array_equal(values("value: 0.3", (3,)), np.full(3, 0.3, np.float32))


def test_uniform():
    drawn = values('type: "uniform" min: -1 max: 3')
    assert drawn.dtype == np.float32
    assert drawn.min() >= -1
    assert drawn.max() <= 3
    assert drawn.mean() == pytest.approx(1, abs=0.02)
    assert drawn.std() == pytest.approx(4 / np.sqrt(12), rel=0.01)


def test_gaussian():
    drawn = values('type: "gaussian" mean: 2 std: 0.5')
    assert drawn.mean() == pytest.approx(2, abs=0.01)
    assert drawn.std() == pytest.approx(0.5, rel=0.01)


def test_numbers_do_not_depend_on_the_number_of_cores(monkeypatch):
    shape = (3, BLOCK - 5)
    drawn = [values('type: "gaussian" std: 1', shape)]
    for cores in ({0}, {0, 1, 2}):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: cores)
        drawn.append(values('type: "gaussian" std: 1', shape))
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], drawn[2])
    assert len(np.unique(drawn[0][:, 0])) == 3


def test_sparse_gaussian_keeps_that_many_inputs_of_each_output():
    drawn = values('type: "gaussian" std: 1 sparse: 20')
    assert (drawn != 0).mean() == pytest.approx(20 / 200, rel=0.05)


@pytest.mark.parametrize(("norm", "fan"), [("FAN_IN", 1000), ("FAN_OUT", 4000), ("AVERAGE", 2500)])
def test_xavier_and_msra_scale_with_their_fan(norm, fan):
    xavier = values(f'type: "xavier" variance_norm: {norm}')
    assert np.abs(xavier).max() <= np.sqrt(3 / fan) * (1 + 1e-6)
    assert xavier.var() == pytest.approx(1 / fan, rel=0.02)
    msra = values(f'type: "msra" variance_norm: {norm}')
    assert msra.var() == pytest.approx(2 / fan, rel=0.02)
    assert np.abs(msra).max() > np.sqrt(6 / fan)  # normal, not uniform


def test_positive_unitball_sums_to_one():
    drawn = values('type: "positive_unitball"')
    assert drawn.min() >= 0
    np.testing.assert_allclose(drawn.reshape(200, -1).sum(axis=1), 1, rtol=1e-4)


def test_bilinear_interpolates():
    """A stride of 2 with this kernel spreads ones to ones: each phase sums to one."""
    kernel = values('type: "bilinear"', (2, 1, 4, 4))
    np.testing.assert_allclose(kernel[0, 0, 0], np.array([1, 3, 3, 1]) / 16, rtol=1e-6)
    assert np.array_equal(kernel[0], kernel[1])
    for row in (0, 1):
        for column in (0, 1):
            assert kernel[0, 0, row::2, column::2].sum() == pytest.approx(1)


def test_bad_fillers_say_where():
    with pytest.raises(UserError, match="here: the gaussian filler's std -1 is negative"):
        values('type: "gaussian" std: -1')
    with pytest.raises(UserError, match="here: the uniform filler's min 1 > max 0"):
        values('type: "uniform" min: 1 max: 0')
    with pytest.raises(UserError, match='here: unknown filler "gauss"'):
        values('type: "gauss"')
    with pytest.raises(UserError, match=r"here.*square"):
        values('type: "bilinear"', (1, 1, 3, 4))
