"""Files are whole whoever is killed, and arrays no larger than their file."""

import errno
import io
import os
import tempfile
import zipfile

import numpy as np
import pytest
from file_writers import writer

from keras_calib.backend.array_files import ArrayFile
from keras_calib.backend.files import clear_leftovers
from keras_calib.backend.files import replacing
from keras_calib.backend.files import unfinished


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


def test_leftovers_go_when_their_writer_is_dead(tmp_path):
    path = tmp_path / "file"
    old = tmp_path / ".file.123.tmp"
    old.touch()
    for command in ("write", "write_folder"):
        with writer(command, path) as process:
            assert process.word == "writing"
            # That of a process that runs, also of this one, stays.
            own = unfinished(path)
            own.touch()
            with replacing(path) as file:
                file.write(b"whole")
            assert len(names(tmp_path)) == 4 and own.exists()
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            clear_leftovers(path)
        assert names(tmp_path) == [old.name, own.name, "file"]
        own.unlink()
    # Of a writer that cannot be asked: by its age.
    os.utime(old, (0, 0))
    clear_leftovers(path)
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"whole"


def test_an_array_is_no_larger_than_its_entry():
    facts = {"descr": "<f8", "fortran_order": False, "shape": (10**9,)}
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(entry, facts)
    entry.write(b"12345678")
    with tempfile.TemporaryFile() as file:
        # Its check sum is right.
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.npy", entry.getvalue())
        file.flush()
        # Told before anything of that size is made room for.
        with pytest.raises(zipfile.BadZipFile, match="another size"):
            ArrayFile(file).header("a")


def test_a_damaged_archive_is_told_or_read_as_it_was():
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(3, 2)), "b": np.arange(4), "c": np.ones(())}
    file = io.BytesIO()
    np.savez(file, **arrays)
    whole = file.getvalue()
    directory = whole.index(b"PK\1\2")
    outcomes = set()
    with tempfile.TemporaryFile() as file:
        for i in range(600):
            content = bytearray(whole)
            first = directory if i % 2 else 0
            for place in rng.integers(first, len(content), size=1 + i % 4):
                content[place] = rng.integers(256)
            file.seek(0)
            file.truncate()
            file.write(content[: None if i % 7 else rng.integers(len(whole))])
            file.flush()
            try:
                damaged = ArrayFile(file)
                read = {name: damaged.read(name) for name in damaged.names}
            except zipfile.BadZipFile:
                outcomes.add("told")
                continue
            outcomes.add("read")
            for name in set(read) & set(arrays):
                np.testing.assert_array_equal(read[name], arrays[name])
    assert outcomes == {"told", "read"}
