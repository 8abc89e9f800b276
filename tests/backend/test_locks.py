"""A file has one writer at a time."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from file_writers import writer

from keras_calib.backend import locks
from keras_calib.backend.locks import PathLock, check_not_locked


def names(folder):
    return sorted(os.listdir(folder))


def test_a_lock_is_refused_while_its_process_runs(tmp_path):
    path = tmp_path / "file"
    with writer("keep", path) as process:
        assert process.word == "kept"
        for take in (PathLock("path", path).acquire, check_not_locked):
            arguments = () if take is not check_not_locked else ("path", path)
            with pytest.raises(RuntimeError, match="`path` must have one") as e:
                take(*arguments)
            assert f"process={process.pid}, host=" in str(e.value)
        process.kill()
        # Dead, but a zombie, as its parent has not asked how it ended.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with PathLock("path", path):
            check_not_locked("path", path)
            with writer("keep", path) as other:
                assert other.word.startswith("refused `path` must have one")
            assert names(tmp_path) == [".file.lock"]
    assert names(tmp_path) == []


def test_of_many_that_take_a_dead_lock_one_has_it(tmp_path):
    path = tmp_path / "file"
    with writer("keep", path):
        pass
    assert names(tmp_path) == [".file.lock"]
    words = []
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        enter = stack.enter_context
        racing = pool.map(lambda _: enter(writer("keep", path)), range(4))
        for process in list(racing):
            words.append(process.word.split()[0])
    assert sorted(words) == ["kept", "refused", "refused", "refused"]


def test_a_forked_process_has_no_lock_of_its_parent(tmp_path):
    with writer("fork", tmp_path / "file") as process:
        assert process.word == "[True, True]"
        assert names(tmp_path) == [".file.lock"]


def test_an_interrupted_writer_of_a_process_gives_way(tmp_path):
    path = tmp_path / "file"
    first, second = PathLock("path", path), PathLock("path", path)
    first.acquire()
    failed = []

    def refused():
        with pytest.raises(RuntimeError, match=f"process={os.getpid()}"):
            second.acquire()
        failed.append(True)

    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()
    assert failed
    second.acquire()
    first.release()
    with writer("keep", path) as process:
        assert process.word.startswith("refused")
    second.release()
    assert names(tmp_path) == []
    # A thread that has ended gives way too.
    thread = threading.Thread(target=first.acquire)
    thread.start()
    thread.join()
    with second:
        assert names(tmp_path) == [".file.lock"]


def test_a_lock_file_that_its_owner_deletes_meanwhile_is_made_anew(
    tmp_path, monkeypatch
):
    lock, place = locks._lock, tmp_path / ".file.lock"

    def late(file):
        monkeypatch.undo()
        place.unlink()
        lock(file)

    monkeypatch.setattr(locks, "_lock", late)
    with PathLock("path", tmp_path / "file"):
        assert names(tmp_path) == [".file.lock"]
        with writer("keep", tmp_path / "file") as process:
            assert process.word.startswith("refused")


def test_a_file_system_without_locks_refuses_nobody(tmp_path, monkeypatch):
    def none(file):
        raise OSError("Function not implemented")

    monkeypatch.setattr(locks, "_lock", none)
    with PathLock("path", tmp_path / "file"):
        assert names(tmp_path) == [".file.lock"]
