"""How files are read and written: completely or not at all, by temporary files, which are
removed even after a process was killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import platform
import re
import select
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .errors import UserError, reason
from .parsing import lines_of

_logger = logging.getLogger("osucaffe")
_PATIENCE = (3.0, 6.0)
"""Seconds to wait for who writes into a pipe, until it is told, and from then on."""
_LONGEST = 1 << 28
"""Bytes that are read of what is not a file: a model, say, that a pipe brings."""
_STEM = 100
"""Bytes of a file's name that its temporary's has, which so is never too long."""
_making = threading.Lock()
"""Held from when a temporary has its name until it is locked; for ever once the process ends."""
_temporaries: set[Path] = set()
"""Those of this process."""


def read_bytes(path: str | Path) -> bytes:
    """All of a file. Raises UserError; of a device or a pipe with no end in sight, too."""
    try:
        return read_file(path)
    except OSError as error:
        raise unreadable(path, error) from None


def read_file(path: str | Path) -> bytes:
    """The same, whose errors are each an OSError."""
    with open_file(path) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read()
        content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            told = f"it is not a regular file, and does not end within {_LONGEST:,} bytes"
            raise OSError(errno.EFBIG, told, str(path))
        return content


def read_lines(path: str | Path, what: str) -> list[str]:
    """The lines of a text, without a byte order mark. what: what messages call it. UserError."""
    try:
        return lines_of(read_file(path))
    except OSError as error:
        raise UserError(f"cannot read {what} {path}: {reason(error)}") from error


def open_file(path: str | Path) -> BinaryIO:
    """A file that is open for reading. Raises OSError, also of a pipe into which nobody writes."""
    try:
        return open(path, "rb", opener=_open)
    except ValueError as error:  # a NUL, or half of a pair of UTF-16: a file may say so
        raise OSError(errno.EINVAL, f"not a valid file name ({error})", str(path)) from None


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else a pipe without a writer has no end
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _await_writer(path, descriptor)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _await_writer(path: str, pipe: int) -> None:
    first, rest = _PATIENCE
    if select.select([pipe], [], [], first)[0]:
        return
    _logger.warning("%s is a pipe: waiting for a process to write to it", path)
    if not select.select([pipe], [], [], rest)[0]:
        raise OSError(errno.ETIMEDOUT, "it is a pipe, and no process writes to it", path)


def unreadable(path: str | Path, error: OSError) -> UserError:
    """What is told of a file that cannot be read."""
    where = ""
    if isinstance(error, FileNotFoundError) and not Path(path).is_absolute():
        where = f" (looked in {Path.cwd()})"
    if isinstance(error, IsADirectoryError):
        what = "an LMDB" if (Path(path) / "data.mdb").exists() else "a folder"
        return UserError(f"{path}: it is {what}, expected a file")
    return UserError(f"{path}: cannot read it: {error.strerror}{where}")


def write_bytes(path: str | Path, *content: bytes) -> None:
    """Write a file, whole or not at all. Raises UserError, before it writes if space is short."""
    with replacing(path) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # no device or pipe
            _check_space(file.fileno(), sum(map(len, content)))
        file.writelines(content)


def _check_space(descriptor: int, needed: int) -> None:
    """OSError where the disk of a file cannot hold that many bytes more."""
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and needed > free:  # some network file systems do not tell: no blocks at all
        raise OSError(
            errno.ENOSPC, f"it needs {needed:,} bytes, but only {free:,} are free on the disk"
        )


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A temporary file, open for writing, that takes the place of `path` when the block has ended
    well.

    It lies in the same folder, and reaches the disk before it is renamed: a crash leaves the old
    file or the new one. When the block fails, nothing is left; an OSError becomes a UserError. A
    device or a pipe (/dev/null) is written to as it is.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
        else:
            with temporary_beside(path) as temporary:
                with open(temporary.descriptor, "w+b", closefd=False) as file:
                    yield file
                os.fsync(temporary.descriptor)
                temporary.path.replace(path)
                _synchronize(path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot write it: {reason(error)}") from None


def _synchronize(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_new(path: str, flags: int) -> int:
    """An opener (of `open`) for files that must not be there yet, not even as a link, with which
    another user of the folder would have a file of ours overwritten. OSError."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


class Temporary(NamedTuple):
    """A new file or folder. descriptor: of it, whatever its path leads to by now: in a folder that
    others may write to, they can put a link in its place."""

    path: Path
    descriptor: int

    @property
    def open_path(self) -> Path:
        """A path that leads to what the descriptor stands for, where the system has such."""
        path = Path("/proc/self/fd", str(self.descriptor))
        return path if path.exists() else self.path


@contextlib.contextmanager
def temporary_beside(path: Path, *, folder: bool = False) -> Iterator[Temporary]:
    """An empty file, or folder, in the folder of `path`; what is left of it at the end is removed.
    OSError where it cannot be made."""
    temporary, descriptor = _name_beside(path), None
    try:
        with _making:
            _temporaries.add(temporary)
            if folder:
                temporary.mkdir()
                descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            else:
                descriptor = open_new(str(temporary), os.O_RDWR)
            _lock(descriptor)
        yield Temporary(temporary, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        _remove(temporary)
        _temporaries.discard(temporary)


def _name_beside(path: Path) -> Path:
    """One that nobody can foresee."""
    stem = os.fsdecode(os.fsencode(path.name)[:_STEM])
    own = f"{platform.node()}.{os.getpid()}.{os.urandom(8).hex()}"
    return path.with_name(f".{stem}.{own}.tmp")


def check_length(path: str | Path) -> None:
    """OSError if the file system has no names so long as that of this file, or of its temporary."""
    for each in Path(path), _name_beside(Path(path)):
        with contextlib.suppress(FileNotFoundError):
            os.lstat(each)


def remove_temporaries() -> None:
    """Remove those of this process, which is about to end: no thread makes another."""
    _making.acquire(timeout=1)
    for path in list(_temporaries):
        _remove(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this host that were killed have left in a folder."""
    with contextlib.suppress(OSError):
        for path in [each for each in folder.iterdir() if _is_leftover(each)]:
            _logger.info("Removing %s, left by a run that was killed", path)
            _remove(path)


def _is_leftover(path: Path) -> bool:
    """Whether it is a temporary of this host, whose process has ended, and that none has locked."""
    form = rf"\..+\.{re.escape(platform.node())}\.(\d+)\.(\w+\.)?tmp(\.[^.]*)?"
    name = re.fullmatch(form, path.name, re.DOTALL)
    if not name or (int(name[1]) != os.getpid() and _runs(int(name[1]))):
        return False
    with _making:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return _lock(descriptor)
        finally:
            os.close(descriptor)


def _runs(process: int) -> bool:
    """Whether a process of this number runs here. (In another container it may be unknown here.)"""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _lock(descriptor: int) -> bool:
    """Lock what it stands for, until it is closed. Whether that was possible."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
