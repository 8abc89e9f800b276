"""A file has one writer at a time."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextlib import contextmanager

import pytest
from file_writers import writer

from keras_calib.backend import locks
from keras_calib.backend import processes
from keras_calib.backend.locks import PathLock
from keras_calib.backend.locks import check_not_locked


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
            assert f"process={process.pid}," in str(e.value)
        process.stdin.close()
        process.wait()
        assert names(tmp_path) == [], "released as its process ends"
    with writer("keep", path) as process:
        process.kill()
        # Dead, but a zombie, as its parent has not asked how it ended.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        check = PathLock("path", path)
        with check:
            check.check()
            assert names(tmp_path) == [".file.lock"]
            # Deleted by somebody, it is written anew.
            os.unlink(tmp_path / ".file.lock")
            check.check()
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
            process.communicate()
    assert sorted(words) == ["kept", "refused", "refused", "refused"]
    assert names(tmp_path) == []


def test_a_forked_process_has_no_lock_of_its_parent(tmp_path):
    with writer("fork", tmp_path / "file") as process:
        assert process.word == "[True, True, True]"
        assert names(tmp_path) == [".file.lock"]


def test_a_lock_of_another_machine_is_watched(tmp_path, monkeypatch):
    path, file = tmp_path / "file", tmp_path / ".file.lock"
    monkeypatch.setattr(locks, "_SILENCE", 0.4)
    with PathLock("path", path):
        content = json.loads(file.read_text())
    machine, number, started = content["process"]
    parent = [machine, os.getppid(), started + 1]
    for process, wait in ((["", 1, 0], True), (parent, False)):
        text = json.dumps({**content, "process": process})
        file.write_text(text)
        if not wait:
            # An id that another process has since got.
            monkeypatch.setattr(locks, "_SILENCE", 1e9)
        with PathLock("path", path):
            assert file.read_text() != text
    monkeypatch.setattr(locks, "_SILENCE", 30.0)
    file.write_text(json.dumps({**content, "process": ["x", 1, 0]}))
    timer = threading.Timer(0.3, os.utime, (file, (1, 1)))
    timer.start()
    with pytest.raises(RuntimeError, match="process=1, host="):
        check_not_locked("path", path)
    timer.join()
    # Cut off in the middle, it is nobody's.
    file.write_text(text[:20])
    with PathLock("path", path):
        pass


def test_an_id_alone_does_not_name_a_process(tmp_path, monkeypatch):
    # Where /proc is hidden; the first process of each container has id 1.
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    monkeypatch.setattr(locks, "_SILENCE", 30.0)
    path, file = tmp_path / "file", tmp_path / ".file.lock"
    with PathLock("path", path):
        content = json.loads(file.read_text())
    machine, number, started = content["process"]
    assert (machine, number) == ("", os.getpid())
    other = [machine, number, started + 1]
    file.write_text(json.dumps({**content, "process": other}))
    timer = threading.Timer(0.3, os.utime, (file, (1, 1)))
    timer.start()
    with pytest.raises(RuntimeError, match="one writer at a time"):
        PathLock("path", path).acquire()
    timer.join()


def test_a_process_that_inherits_the_lock_file_does_not_keep_it(tmp_path):
    path = tmp_path / "file"
    with ExitStack() as stack:
        with open(path, "w") as file, locks._alone(file):
            sleep = [sys.executable, "-c", "input()"]
            pipes = {"stdin": subprocess.PIPE, "pass_fds": [file.fileno()]}
            stack.enter_context(subprocess.Popen(sleep, **pipes))
        with open(path, "w") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_file_of_somebody_else_is_named(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(locks.os, "open", refused)
    match = "`path` must have a lock file.*lock='.*.file.lock'"
    with pytest.raises(PermissionError, match=match):
        PathLock("path", tmp_path / "file").acquire()


def test_an_interrupted_writer_of_a_process_gives_way(tmp_path, monkeypatch):
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
    with pytest.raises(RuntimeError, match="one writer at a time"):
        first.check()
    first.release()
    second.check()
    monkeypatch.setattr(locks, "_BEAT", 0.02)
    with PathLock("path", path):
        # It says that it lives.
        file = tmp_path / ".file.lock"
        os.utime(file, (1, 1))
        while file.stat().st_mtime < 2:
            time.sleep(0.01)

    # Its owner gives it up while another waits for it.
    @contextmanager
    def given_up(opened):
        monkeypatch.undo()
        (tmp_path / ".file.lock").unlink()
        yield

    monkeypatch.setattr(locks, "_alone", given_up)
    second.acquire()
    assert names(tmp_path) == [".file.lock"]
    # Deleted objects have no lock.
    second = None
    assert names(tmp_path) == []
