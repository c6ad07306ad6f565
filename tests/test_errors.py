"""What is offered for a slip of the fingers is what was meant, or nothing; long lists are cut."""

from __future__ import annotations

import pytest

from osucaffe.errors import listed, nearest
from osucaffe.layer import layer_types
from osucaffe.proto import LayerParameter

FIELDS = list(LayerParameter.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("nmae", "name"),
        ("typ", "type"),
        ("convolution_parma", "convolution_param"),
        ("convolutoin_param", "convolution_param"),
        ("mvm_param", "mvn_param"),
        ("inner_produkt_prams", "inner_product_param"),
        ("iner_produkt_prams", None),  # four slips
        ("bnn_param", "bn_param"),
        ("trt_param", None),  # not lrn_param
        ("picpac_param", None),
        ("quartet_loss_param", None),  # not region_loss_param
        ("image_transform_param", None),  # not cpm_transform_param
        ("z", None),
        ("", None),
    ],
)
def test_fields(word: str, meant: str | None) -> None:
    assert nearest(word, FIELDS) == meant


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("Convolutoin", "Convolution"),
        ("relu", "ReLU"),
        ("Softmaxwithloss", "SoftmaxWithLoss"),
        ("Warp", None),  # not Crop
        ("DocData", None),  # not Data
        ("DeformablePSROI", None),
    ],
)
def test_layer_types(word: str, meant: str | None) -> None:
    assert nearest(word, layer_types()) == meant


def test_nothing_is_near_when_nothing_is_known() -> None:
    assert nearest("name", []) is None


def test_of_many_the_first_are_named() -> None:
    assert listed([]) == ""
    assert listed(range(3), 3) == "0, 1, 2"
    assert listed(map(str, range(5001)), 2) == "0, 1 and 4,999 more"
