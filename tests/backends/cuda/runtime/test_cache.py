"""The folder of what was compiled and chosen: shared by users who do not trust each other, or where
the usual one cannot be written to."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osucaffe.backends.cuda.autotune.choices import Choices
from osucaffe.backends.cuda.runtime import cache
from tests.processes import python

ASK = """
from osucaffe.backends.cuda.runtime.cache import *
from tests.processes import python
f = cache_folder()
keep(f / "a", b"1")
print(f)
"""


def ask(cache: Path) -> Path:
    return Path(python("-c", ASK, OSUCAFFE_CACHE=str(cache)).stdout.strip())


def test_what_is_kept_lies_in_the_folder(tmp_path: Path) -> None:
    assert ask(tmp_path / "new" / "cache") == tmp_path / "new" / "cache"
    assert [path.name for path in (tmp_path / "new" / "cache").iterdir()] == ["a"]


def test_a_folder_that_goes_with_the_process_stands_in(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    instead = ask(tmp_path / "file" / "cache")  # nothing can be made there, not even by root
    assert not instead.is_relative_to(tmp_path)
    assert not instead.exists()


def test_on_a_full_disk_a_file_lies_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full(source: str, target: Path) -> None:
        if target.parent == tmp_path:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    lies = cache.keep_somewhere(tmp_path / "a", b"content")
    assert lies.read_bytes() == b"content"
    assert not lies.is_relative_to(tmp_path)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(OSError, match="No space"):
        cache.keep(tmp_path / "a", b"content")
    assert not [*tmp_path.iterdir()]


USER, OTHER = 65534, 12345
NAME = "a.cubin"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("OSUCAFFE_CACHE", str(folder))
    yield folder
    shutil.rmtree(folder)


def owner(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    """Let all files look as if they were this user's, and this process be USER's."""

    def owned(function: Callable[..., os.stat_result], *given: object, **more: object) -> object:
        status = function(*given, **more)
        return os.stat_result((*status[:4], user, *status[5:]))

    monkeypatch.setattr(os, "geteuid", lambda: USER)
    for name in "stat", "lstat":
        monkeypatch.setattr(os, name, functools.partial(owned, getattr(os, name)))
    cache._writable.cache_clear()


@pytest.mark.parametrize(
    ("user", "folder", "file", "found"),
    [
        (USER, 0o755, 0o644, True),
        (0, 0o755, 0o644, True),  # root has prepared it for all
        (0, 0o1777, 0o644, True),
        (OTHER, 0o755, 0o644, False),
        (OTHER, 0o1777, 0o644, False),
        (USER, 0o755, 0o664, False),
        (USER, 0o755, 0o646, False),
        (0, 0o777, 0o644, False),  # somebody may have put another there in its place
    ],
)
def test_only_what_no_other_user_can_have_written_is_found(
    shared: Path, monkeypatch: pytest.MonkeyPatch, user: int, folder: int, file: int, found: bool
) -> None:
    (shared / NAME).touch()
    (shared / NAME).chmod(file)
    shared.chmod(folder)
    owner(monkeypatch, user)
    assert (cache.cached(NAME) == shared / NAME) is found
    cache._writable.cache_clear()


def test_a_link_is_not_followed(shared: Path) -> None:
    (shared / "other").touch()
    (shared / NAME).symlink_to(shared / "other")
    assert cache.cached("other") == shared / "other"
    assert cache.cached(NAME) is None


def test_choices_of_others_do_not_count(shared: Path) -> None:
    choices = Choices("device")
    assert choices.path.parent == shared
    choices.put("call", "fast", 1.0, ["fast"])
    assert choices.path.stat().st_mode & 0o777 == 0o644
    assert Choices("device").get("call") == ("fast", 1.0)
    choices.path.chmod(0o666)
    assert Choices("device").get("call") is None
    Choices("device").put("call", "slow", 2.0, ["fast", "slow"])
    assert Choices("device").get("call") == ("slow", 2.0)


def test_a_folder_that_others_write_to_has_one_for_each(shared: Path) -> None:
    shared.chmod(0o1777)
    own = shared / f"user-{os.geteuid()}"
    for _ in range(2):
        cache._writable.cache_clear()
        assert cache.cache_folder() == own
        assert own.stat().st_mode & 0o777 == 0o755


def test_a_folder_that_another_has_laid_out_is_not_used(
    shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (shared / f"user-{USER}").mkdir()
    owner(monkeypatch, OTHER)
    with caplog.at_level(logging.WARNING, "osucaffe"):
        assert not cache.cache_folder().is_relative_to(shared)
    assert "it is not this user's alone" in caplog.text
    cache._writable.cache_clear()


def as_user(action: Callable[[], object]) -> bool:
    """Whether an action is true for another user."""
    process = os.fork()
    if not process:
        code = 1
        try:
            os.setgid(USER)
            os.setuid(USER)
            cache._writable.cache_clear()
            cache._passing.cache_clear()
            code = not action()
        finally:
            if cache._passing.cache_info().currsize:
                shutil.rmtree(cache._passing())
            os._exit(code)
    return os.waitpid(process, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_second_user(shared: Path, mode: int) -> None:
    shared.chmod(mode)

    def writes() -> bool:
        path = cache.keep_somewhere(cache.cache_folder() / NAME, b"the user's")
        there = path == shared / f"user-{USER}" / NAME
        return there == (mode != 0o755) and path.read_bytes() == b"the user's"

    def finds() -> bool:
        path = cache.cached(NAME)
        return path is not None and path.read_bytes() == b"the user's"

    assert as_user(writes)
    assert as_user(finds) is (mode != 0o755)
    assert cache.cached(NAME) is None
    cache.keep(shared / "of root", b"")
    assert as_user(lambda: cache.cached("of root")) is (mode != 0o777)
