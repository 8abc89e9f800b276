"""Files of arrays may come from anywhere: one reader, one error, few bytes."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from kinds_of_files import KINDS, writers

import keras_calib as kc
from keras_calib.backend.files import Stored, reading_npz
from keras_calib.predictions.tables import Table


def columns(path):
    file = Table(path)
    return [file.array(name) for name in file.names]


READERS = {
    "tokens.npz": kc.calibrators.CompactLogits.load,
    "monitor.npz": kc.Monitor.load,
    "backup.npz": lambda path: kc.training.load_training_state(
        path, writers()["model"]
    ),
    "records.npz": columns,
}


def npy(array, header=None):
    """The entry of an array; `header` takes the place of its own."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array))
    content = file.getvalue()
    if header is None:
        return content
    start = content.index(b"{")
    end = content.index(b"\n") + 1
    return (
        content[:start] + header.ljust(end - start - 1) + b"\n" + content[end:]
    )


def forged(path, entries, how=zipfile.ZIP_DEFLATED):
    """Writes a file anew with other entries."""
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in {**kept, **entries}.items():
            archive.writestr(name, content)


def pickled():
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    return file.getvalue()


def damaged(content):
    """Files that are none, or not all of one."""
    middle = len(content) // 2
    return {
        "empty": b"",
        "text": b"confidence,correct\n0.5,1\n",
        "one array": npy(np.ones(3)),
        "half": content[:middle],
        "without its end": content[:-30],
        "overwritten": content[:middle] + bytes(64) + content[middle + 64 :],
    }


ENTRIES = {
    "pickle": pickled(),
    "no array": b"text",
    "too short": npy(np.ones(9))[:-8],
    "too long": npy(np.ones(9)) + bytes(8),
    "other magic": npy(np.ones(9)).replace(b"NUMPY", b"NUMPX"),
    "larger than it is": npy(
        np.ones(2),
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**12,), }",
    ),
    "negative": npy(
        np.ones(2),
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -2), }",
    ),
    "of code": npy(np.ones(2), b"{'descr': '<f8', 'shape': exit(), }"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_one_error_that_names_it(name, tmp_path):
    path, read = tmp_path / name, READERS[name]
    KINDS[name](writers(), path)
    read(path)
    content = path.read_bytes()
    with np.load(path) as arrays:
        first = arrays.files[-1]
    for kind, other in (damaged(content) | ENTRIES).items():
        path.write_bytes(content if kind in ENTRIES else other)
        if kind in ENTRIES:
            forged(path, {f"{first}.npy": other}, zipfile.ZIP_STORED)
        with pytest.raises(ValueError, match="must") as raised:
            read(path)
        assert name in str(raised.value), kind


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_is_no_file(name, tmp_path):
    path = tmp_path / name
    path.mkdir()
    made, write, read = writers(), KINDS[name], READERS.get(name)
    for call in [lambda: write(made, path), read and (lambda: read(path))]:
        if call:
            with pytest.raises(ValueError, match=f"folder.*{name}|{name}.*fol"):
                call()
    assert path.is_dir() and not [*path.iterdir()]


@pytest.mark.parametrize("name", ["tokens.npz", "monitor.npz", "backup.npz"])
def test_a_small_file_takes_little_memory(name, tmp_path):
    path, read = tmp_path / name, READERS[name]
    KINDS[name](writers(), path)
    with np.load(path) as arrays:
        names = arrays.files
    zeros = npy(np.zeros(2**21))
    for entries in (
        # One that nobody asks for, one that is asked for, and all.
        {"other.npy": zeros},
        {f"{names[-1]}.npy": zeros},
        {f"{x}.npy": npy(np.zeros(2**16)) for x in names},
    ):
        KINDS[name](writers(), path)
        forged(path, entries)
        assert path.stat().st_size < 2e6
        tracemalloc.start()
        try:
            read(path)
        except ValueError as error:
            assert name in str(error)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4e6


def test_an_array_is_read_once_and_a_name_is_there_once(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.ones(3), b=np.zeros(2))
    with reading_npz(path, "rule") as file:
        assert file.names == ["a", "b"]
        assert file.form("a") == (np.dtype("float64"), (3,))
        file.read("a", Stored("f", (None,), 0.0, 1.0))
    for stored in (
        Stored("i", (3,)),
        Stored("f", (2,)),
        Stored("f", (-2,)),
        Stored("f", (3, 1)),
        Stored("f", (3,), 2.0),
        Stored("f", (3,), 0.0, 0.5),
    ):
        with (
            pytest.raises(ValueError, match='rule.*a must|rule.*"a" must'),
            reading_npz(path, "rule") as file,
        ):
            file.read("a", stored)
    with (
        pytest.raises(ValueError, match="read once"),
        reading_npz(path, "rule") as file,
    ):
        file.read("a")
        file.read("a")
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(path, "a") as archive,
    ):
        archive.writestr("a.npy", npy(np.ones(3)))
    with (
        pytest.raises(ValueError, match="there once"),
        reading_npz(path, "rule"),
    ):
        pass
