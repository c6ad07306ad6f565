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


def test_constants_and_distributions():
    assert not fill(None, (3, 2), Draws(1)).any()
    assert np.array_equal(values("value: 0.3", (3,)), np.full(3, 0.3, np.float32))
    for text, mean, std in (
        ('type: "uniform" min: -1 max: 3', 1, 4 / np.sqrt(12)),
        ('type: "gaussian" mean: 2 std: 0.5', 2, 0.5),
    ):
        drawn = values(text)
        assert drawn.dtype == np.float32
        assert drawn.mean() == pytest.approx(mean, abs=0.02)
        assert drawn.std() == pytest.approx(std, rel=0.01)
        assert "gauss" in text or (drawn.min() >= -1 and drawn.max() <= 3)
    sparse = values('type: "gaussian" std: 1 sparse: 20')  # so many inputs of each output
    assert (sparse != 0).mean() == pytest.approx(20 / 200, rel=0.05)
    ball = values('type: "positive_unitball"')
    assert ball.min() >= 0
    np.testing.assert_allclose(ball.reshape(200, -1).sum(axis=1), 1, rtol=1e-4)
    rows = values('type: "gaussian_unitball"').reshape(200, -1)
    np.testing.assert_allclose((rows * rows).sum(axis=1), 1, rtol=1e-5)
    assert abs(rows.mean()) < 0.01


def test_numbers_do_not_depend_on_the_number_of_cores(monkeypatch):
    shape = (3, BLOCK - 5)
    drawn = [values('type: "gaussian" std: 1', shape)]
    for cores in ({0}, {0, 1, 2}):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: cores)
        drawn.append(values('type: "gaussian" std: 1', shape))
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], drawn[2])
    assert len(np.unique(drawn[0][:, 0])) == 3


@pytest.mark.parametrize(("norm", "fan"), [("FAN_IN", 1000), ("FAN_OUT", 4000), ("AVERAGE", 2500)])
def test_xavier_and_msra_scale_with_their_fan(norm, fan):
    xavier = values(f'type: "xavier" variance_norm: {norm}')
    assert np.abs(xavier).max() <= np.sqrt(3 / fan) * (1 + 1e-6)
    assert xavier.var() == pytest.approx(1 / fan, rel=0.02)
    msra = values(f'type: "msra" variance_norm: {norm}')
    assert msra.var() == pytest.approx(2 / fan, rel=0.02)
    assert np.abs(msra).max() > np.sqrt(6 / fan)  # normal, not uniform


def test_bilinear_interpolates():
    """A stride of 2 with this kernel spreads ones to ones: each phase sums to one."""
    kernel = values('type: "bilinear"', (2, 1, 4, 4))
    np.testing.assert_allclose(kernel[0, 0, 0], np.array([1, 3, 3, 1]) / 16, rtol=1e-6)
    assert np.array_equal(kernel[0], kernel[1])
    for row in (0, 1):
        for column in (0, 1):
            assert kernel[0, 0, row::2, column::2].sum() == pytest.approx(1)


def test_bad_fillers_say_where():
    for text, message in (
        ('type: "gaussian" std: -1', "the gaussian filler's std -1 is negative"),
        ('type: "uniform" min: 1 max: 0', "the uniform filler's min 1 > max 0"),
        ('type: "gauss"', 'unknown filler "gauss"'),
        ('type: "bilinear"', ".*square"),
    ):
        with pytest.raises(UserError, match=f"here: {message}"):
            values(text, (1, 1, 3, 4))
