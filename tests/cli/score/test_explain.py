"""osucaffe classify --explain: the red part is what the label hangs on."""

from __future__ import annotations

import numpy as np
from PIL import Image

from osucaffe.proto import NetParameter, parse_text, write_weights

from ..conftest import Cli

NET = """
layer {{ name: "data" type: "Input" top: "data"
  input_param {{ shape {{ dim: {rows} dim: 3 dim: 24 dim: 24 }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: 2 }} }}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
"""


def test_what_counts_is_red(cli: Cli) -> None:
    """A net that looks at the upper left corner only."""
    cli.write("deploy.prototxt", NET.format(rows=2))
    weights = np.zeros((2, 3, 24, 24), np.float32)
    weights[1, :, :8, :8] = 0.0002
    trained = parse_text(NET.format(rows=1), NetParameter)
    for values in (weights.reshape(2, -1), np.zeros(2, np.float32)):
        blob = trained.layer[1].blobs.add(data=values.ravel().tolist())
        blob.shape.dim.extend(values.shape)
    write_weights(cli.folder / "w.caffemodel", trained)
    pixels = np.zeros((24, 24, 3), np.uint8)
    pixels[:8, :8] = 255
    (cli.folder / "photos").mkdir()
    for name in ("a", "b", "c"):
        Image.fromarray(pixels).save(cli.folder / "photos" / f"{name}.png")
    words = ("classify", "photos", "--model=deploy.prototxt", "--weights=w.caffemodel", "--mean=0")
    result = cli.ok(*words, "--top=1", "--explain=why")
    assert "wrote 3 pictures to why" in result.out
    assert result.out.count("class 1") == 3
    made = sorted((cli.folder / "why").iterdir())
    assert [path.name for path in made] == ["00000_a.png", "00001_b.png", "00002_c.png"]
    shown = np.asarray(Image.open(made[2]).convert("RGB")).astype(int)
    assert shown.shape == (224, 448, 3)
    redness = shown[..., 0] - shown[..., 2]
    assert np.abs(redness[:, :224]).max() == 0  # as it entered the net
    assert redness[:40, 224:264].mean() > 150
    assert redness[120:, 344:].max() < 5
