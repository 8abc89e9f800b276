"""Files are whole, whoever is killed."""

import errno
import os

import pytest
from file_writers import writer

from keras_calib.backend.files import replacing


def names(folder):
    return sorted(os.listdir(folder))


def test_a_name_is_safe_before_what_it_names(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    path = tmp_path / "new" / "file"

    def synced(number):
        calls.append(os.path.realpath(f"/proc/self/fd/{number}"))
        fsync(number)

    def replaced(old, new):
        calls.append((str(old), str(new)))
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "replace", replaced)
        with replacing(path) as file:
            file.write(b"content")
    beside = calls[1]
    # The folder's name in its folder, content, change of names, new name.
    assert calls == [
        str(tmp_path),
        beside,
        (beside, str(path)),
        str(path.parent),
    ]
    assert path.read_bytes() == b"content" and names(path.parent) == ["file"]


def test_what_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*arguments):
        raise full

    for name in ("fsync", "replace", None):
        with monkeypatch.context() as patch, pytest.raises(OSError) as raised:
            if name:
                patch.setattr(os, name, fails)
            with replacing(path, text=True) as file:
                file.write("new")
                if name is None:
                    raise full
        assert raised.value is full
        assert names(tmp_path) == ["file"] and path.read_text() == "old"
    link = tmp_path / "link"
    link.symlink_to(path)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink() and path.read_text() == "new"


def test_leftovers_go_when_they_are_old(tmp_path):
    path = tmp_path / "file"
    with writer("write", path) as process:
        assert process.word == "writing"
    (left,) = tmp_path.iterdir()
    other = tmp_path / ".another.0.tmp"
    other.touch()
    for old in (False, True):
        with replacing(path) as file:
            file.write(b"whole")
        # It may be that of a process on another machine.
        assert left.exists() != old
        os.utime(other, (0, 0))
        if not old:
            os.utime(left, (0, 0))
    assert names(tmp_path) == [other.name, "file"]
    assert path.read_bytes() == b"whole"
    long = tmp_path / ("é" * 127)
    with replacing(long):
        pass
    assert long.exists()
