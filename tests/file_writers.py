"""Processes that write files, or keep them for themselves.

python tests/file_writers.py COMMAND PATH

Such a process says a word when it has done its part, and ends with its
input. It loads no backend of Keras, which takes longer than what it does.
"""

import os
import subprocess
import sys
import types
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    PACKAGE = types.ModuleType("keras_calib")
    PACKAGE.__path__ = [str(Path(__file__).parents[1] / "keras_calib")]
    sys.modules["keras_calib"] = PACKAGE

from keras_calib.backend.files import replacing  # noqa: E402
from keras_calib.backend.locks import PathLock  # noqa: E402


@contextmanager
def writer(command, path):
    """A process that has done its part and waits; it is killed at the end."""
    started = (sys.executable, __file__, command, path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(started, **pipes) as process:
        process.word = process.stdout.readline().strip()
        try:
            yield process
        finally:
            process.kill()


def say(word):
    print(word, flush=True)
    sys.stdin.read()


def keep(path):
    lock = PathLock("path", path)
    try:
        lock.acquire()
    except RuntimeError as error:
        say(f"refused {error}")
    else:
        say("kept")


def fork(path):
    lock = PathLock("path", path)
    lock.acquire()
    words = []
    for call in (lock.acquire, PathLock("path", path).acquire):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                call()
            except RuntimeError as error:
                os.write(write, str(error).encode())
            lock.release()
            sys.exit()
        os.close(write)
        words.append(f"process={os.getpid()}," in os.read(read, 9999).decode())
        os.wait()
    say(f"{words}")


def write(path):
    with replacing(path) as file:
        file.write(b"half")
        say("writing")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
