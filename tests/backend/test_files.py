"""Files are whole, whoever is killed."""

import errno
import io
import os
import random
import resource
import signal
import time
import warnings
import zipfile

import pytest
from cases import BACKEND
from file_writers import writer
from kinds_of_files import KINDS, writers

import keras_calib as kc
from keras_calib.backend.files import replacing, write_csv
from keras_calib.predictions.tables import Table

FSIZE = resource.RLIMIT_FSIZE


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


@pytest.mark.parametrize("name", KINDS)
def test_a_full_disk_leaves_the_old_file_and_says_which(name, tmp_path):
    path, (soft, hard) = tmp_path / name, resource.getrlimit(FSIZE)
    made, write = writers(), KINDS[name]
    write(made, path)
    old, there = path.read_bytes(), names(tmp_path)
    assert len(old) > 200
    resource.setrlimit(FSIZE, (200, hard))
    try:
        with pytest.raises(OSError) as raised:
            write(made, path)
    finally:
        resource.setrlimit(FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
    assert name in str(raised.value)
    assert path.read_bytes() == old and names(tmp_path) == there


# The command line gives this writer a path that it has read.
@pytest.mark.parametrize("name", sorted({*KINDS} - {"plan.csv"}))
def test_a_path_is_a_text_and_home_is_home(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made, write = writers(), KINDS[name]
    for path, error in (
        (name.encode(), TypeError),
        (5, TypeError),
        (io.BytesIO(), TypeError),
        (f"a\0{name}", ValueError),
        (f"https://a.b/{name}", ValueError),
    ):
        with pytest.raises(error, match="^`(csv_)?path` must be "):
            write(made, path)
    assert names(tmp_path) == []
    write(made, f"~/{name}")
    assert name in names(tmp_path / "home")
    assert names(tmp_path) == ["home"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("tokens.npz", kc.calibrators.CompactLogits.load),
        ("monitor.npz", kc.Monitor.load),
        ("backup.npz", kc.training.finished_epochs),
        ("threshold.json", kc.exporting.load_threshold),
        ("records.csv", lambda path: Table(path).names),
    ],
)
def test_what_is_written_at_home_is_read_there(
    name, read, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    made, here = writers(), (tmp_path / name).resolve()
    KINDS[name](made, here)
    assert type(read(f"~/{name}")) is type(read(here))
    for path in (bytes(here), 5, None):
        with pytest.raises(TypeError, match="^`path` must be a text"):
            read(path)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="one backend shows it")
@pytest.mark.parametrize("name", KINDS)
def test_a_kill_leaves_a_whole_file(name, tmp_path):
    path, made = tmp_path / name, writers()
    KINDS[name](made, path)
    size, rng, within = path.stat().st_size, random.Random(0), 0
    for _ in range(20):
        with warnings.catch_warnings():
            # Of threads, which the child has not.
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            while True:
                KINDS[name](made, path)
        time.sleep(rng.uniform(0.02, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
        else:
            assert path.stat().st_size == size
        left = [x for x in names(tmp_path) if x.endswith(".tmp")]
        within += bool(left)
        for other in left:
            (tmp_path / other).unlink()
    assert within


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        (" =1", "' =1"),
        ("\uff1d1", "'\uff1d1"),
        ("-1+1", "'-1+1"),
        ("-0.5\n=1", '"\'-0.5\n=1"'),
        ("-1_0", "'-1_0"),
        ("=a,b", '"\'=a,b"'),
        ("-0.5", "-0.5"),
        ("+1e-3", "+1e-3"),
        ("-inf", "-inf"),
        (-0.5, "-0.5"),
        (-3, "-3"),
        (None, ""),
        ("a=b", "a=b"),
        ("a-b", "a-b"),
        ("", ""),
    ],
)
def test_no_cell_is_a_formula_and_numbers_stay(cell, written):
    file = io.StringIO()
    write_csv(file, [["name", cell]])
    assert file.getvalue() == f"name,{written}\n"
