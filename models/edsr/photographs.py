"""Photographs to train super-resolution on: fetches them from Debian's packages.

python models/edsr/photographs.py --out data/photographs [--pixels 1.5] [--debs FOLDER]

Makes train_lmdb, train_low_lmdb, val_lmdb and val/*.png of 37 photographs with free licences, 210
megapixels as they come; `licences` has the copyright file of each package. `apt-get download`
fetches the packages (190 MB; no root); on a system without it, download what PHOTOGRAPHS names into
a folder and give that as --debs.

Photographs of telephones and cameras are soft pixel by pixel, so that making them twice as large
is easy for any method. Each is shrunk by a whole number (Lanczos) until it has at most --pixels
megapixels. A hash of its name decides whether it is held out for validation.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from osucaffe.data.databases.database import record_key, write_database
from osucaffe.data.databases.datum import make_datum
from osucaffe.data.pictures.bicubic import shrink
from osucaffe.errors import UserError

SCALE = 2
VALIDATION = 1 / 6
"""The share of the photographs that are held out, about."""

PHOTOGRAPHS = {
    "lomiri-wallpapers-16.04": [
        *("Bridge_by_Sander_Klootwijk", "Dragonfly_by_Bolly", "Picture_0B_by_freespace"),
        *("Picture_1A_by_freespace", "Wine_by_Jakkub_Mede", "aitzgorri_by_Aitzol_Berasategi"),
        *("free_by_Peter_Nerlich", "friends_by_Aitzol_Berasategi", "greentock_by_Peter_Nerlich"),
        *("life_by_Aitzol_Berasategi", "picosdeeuropa_by_Aitzol_Berasategi"),
        *("seeding_by_Clements_Engelhardt", "sunset_by_Aitzol_Berasategi"),
    ],
    "lomiri-wallpapers-20.04": ["Kleiber_by_Lukas_Baubkus"],
    "mate-backgrounds": [
        *("Aqua", "Blinds", "Dune", "FreshFlower", "Garden", "GreenMeadow", "LadyBird"),
        *("RainDrops", "Storm", "TwoWings", "Wood", "YellowFlower"),
    ],
    "plasma-workspace-wallpapers": [
        *("BytheWater", "ColdRipple", "ColorfulCups", "DarkestHour", "EveningGlow", "FallenLeaf"),
        *("Grey", "Kite", "OneStandsOut", "Path", "summer_1am"),
    ],
}
"""By package: the names of files, or of the folders of wallpapers, that are photographs."""


def main() -> None:
    """Fetch, shrink, split and write."""
    parser = argparse.ArgumentParser(description="Photographs for super-resolution.")
    parser.add_argument("--out", default="data/photographs", help="the folder to write")
    parser.add_argument("--debs", help="a folder with the packages (default: they are fetched)")
    parser.add_argument("--pixels", type=float, default=1.5, help="megapixels of each, at most")
    args = parser.parse_args()
    out = Path(args.out)
    try:
        with tempfile.TemporaryDirectory() as folder:
            debs = Path(args.debs or folder)
            if not args.debs:
                fetch(debs)
            write(out, dict(sorted(photographs(debs, out / "licences"))), args.pixels * 1e6)
    except UserError as error:
        raise SystemExit(f"photographs.py: {error}") from None


def fetch(folder: Path) -> None:
    """Download the packages with apt-get."""
    if not shutil.which("apt-get"):
        raise UserError(
            "there is no apt-get here: download the packages of Debian "
            f"{', '.join(PHOTOGRAPHS)} into a folder, and give --debs FOLDER"
        )
    done = subprocess.run(["apt-get", "download", *PHOTOGRAPHS], cwd=folder, check=False)
    if done.returncode:
        raise UserError("apt-get download failed: apt-get update may be needed before")


def photographs(debs: Path, licences: Path) -> Iterator[tuple[str, Image.Image]]:
    """The photographs of the packages in a folder, by name; their licences are written."""
    licences.mkdir(parents=True, exist_ok=True)
    for package, names in PHOTOGRAPHS.items():
        found = sorted(debs.glob(f"{package}_*.deb"))
        if not found:
            raise UserError(f"{debs}: there is no {package}_*.deb in it")
        wanted = set(names)
        for path, content in files(found[-1]):
            if path.name == "copyright":
                (licences / f"{package}.txt").write_bytes(content)
            if path.suffix != ".jpg" or not (hit := wanted & {path.stem, *path.parts[-4:-3]}):
                continue
            if "images" in path.parts or path.stem in hit:  # no picture of a folder's content
                wanted -= hit
                yield f"{package}/{hit.pop()}", Image.open(io.BytesIO(content)).convert("RGB")
        if wanted:
            raise UserError(f"{found[-1]}: holds no photograph {', '.join(sorted(wanted))}")


def files(deb: Path) -> Iterator[tuple[Path, bytes]]:
    """The files of a Debian package: an archive by ar(1), in which data.tar.* holds them."""
    content = deb.read_bytes()
    at = 8 if content.startswith(b"!<arch>\n") else len(content)
    while at < len(content):
        header = content[at : at + 60]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        at += 60
        if name.startswith("data.tar"):
            try:
                with tarfile.open(fileobj=io.BytesIO(content[at : at + size])) as archive:
                    for member in archive:
                        if member.isreg() and (opened := archive.extractfile(member)):
                            yield Path(member.name), opened.read()
                return
            except tarfile.ReadError:
                raise UserError(
                    f"{deb}: Python cannot unpack its {name}: take the package of Debian"
                ) from None
        at += size + size % 2
    raise UserError(f"{deb}: not a whole package of Debian")


def write(out: Path, images: dict[str, Image.Image], pixels: float) -> None:
    """Write the databases, and the validation's photographs as files."""
    shutil.rmtree(out / "val", ignore_errors=True)
    (out / "val").mkdir()
    parts: dict[str, list[tuple[str, np.ndarray]]] = {"train": [], "val": []}
    original = sum(image.width * image.height for image in images.values())
    for name, image in images.items():
        image = smaller(image, pixels)
        part = "val" if held_out(name) else "train"
        if part == "val":
            image.save(out / part / f"{Path(name).name}.png")
        # As records lie: channels first, blue first.
        parts[part].append((name, np.asarray(image)[:, :, ::-1].transpose(2, 0, 1)))
    low = [(name, shrink(image, SCALE)) for name, image in parts["train"]]
    for title, part_ in [*parts.items(), ("train_low", low)]:
        write_database(out / f"{title}_lmdb", (
            (record_key(index, name), make_datum(np.ascontiguousarray(image), 0, encoded=False))
            for index, (name, image) in enumerate(part_)
        ))  # fmt: skip
    kept = sum(image[0].size for part_ in parts.values() for _, image in part_)
    print(
        f"{out}: {len(parts['train'])} photographs for training, {len(parts['val'])} for "
        f"validation; {original / 1e6:.0f} megapixels, shrunk to {kept / 1e6:.0f}"
    )


def smaller(image: Image.Image, pixels: float) -> Image.Image:
    """An image shrunk by the least whole number with which it has at most that many pixels, its
    extents multiples of SCALE."""
    factor = 1
    while (image.width // factor) * (image.height // factor) > pixels:
        factor += 1
    width, height = (extent // factor // SCALE * SCALE for extent in image.size)
    box = (0, 0, width * factor, height * factor)
    return image.resize((width, height), Image.Resampling.LANCZOS, box)


def held_out(name: str) -> bool:
    """Whether a photograph is for validation."""
    return hashlib.sha256(name.encode()).digest()[0] < 256 * VALIDATION


if __name__ == "__main__":
    main()
