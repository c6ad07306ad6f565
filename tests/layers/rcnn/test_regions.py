"""What the layers over regions compute where no figures of a fork are at hand, and refuse."""

from __future__ import annotations

import pytest

from ..nets import refuse


@pytest.mark.parametrize(
    ("type_", "settings", "message"),
    [
        ("ROIPooling", "", r"roi_pooling_param.pooled_h: must be at least 1"),
        ("PSROIPooling", "psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 3 }",
         r"bottom\[0\]: has shape \(1, 4, 6, 6\), but must be \(1, 18, 6, 6\): output_dim"),
        ("ROIWarping", "roi_warping_param { pooled_h: 2 }",
         r"roi_warping_param.pooled_w: must be at least 1"),
        ("MaskPooling", "", r"bottom\[1\]: has shape \(3, 5\), but must be \(1, 1, 6, 6\)"),
        ("ROIAlign", "roi_pooling_param { pooled_h: 2 pooled_w: 2 }",
         r"bottom\[1\]: has shape \(3, 4\), but must be R x 5"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(type_: str, settings: str, message: str) -> None:
    rois = (3, 4) if type_ == "ROIAlign" else (3, 5)
    refuse(f'type: "{type_}" top: "y" {settings}', [(1, 4, 6, 6), rois], message)
