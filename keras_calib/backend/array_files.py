"""Arrays of an .npz file, read one at a time, none larger than the file."""

import os
import struct
import tokenize
import zipfile
from typing import IO

import numpy as np

__all__ = ["ArrayFile"]

_VERSIONS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What the standard library and NumPy raise of damaged files, beside
# `BadZipFile`.
_DAMAGE = (
    EOFError,
    KeyError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    ValueError,
    struct.error,
    tokenize.TokenError,
)


class ArrayFile:
    """What `numpy.savez` wrote, where the file may be from anybody.

    Entries that are compressed are refused, as `numpy.savez` writes none: a
    small file cannot fill the memory. Nothing is unpickled.

    Raises:
        zipfile.BadZipFile: If it is no such file, or a part of one; also
            later, by the methods.
    """

    def __init__(self, file: IO[bytes]):
        try:
            self._zip = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise zipfile.BadZipFile("no archive") from error
        size = os.fstat(file.fileno()).st_size
        entries = self._zip.infolist()
        for entry in entries:
            plain = entry.compress_type == zipfile.ZIP_STORED
            if not plain or entry.file_size != entry.compress_size:
                raise zipfile.BadZipFile(f"{entry.filename} is compressed")
        if sum(entry.file_size for entry in entries) > size:
            raise zipfile.BadZipFile("entries overlap")
        self._entries = {x.filename.removesuffix(".npy"): x for x in entries}

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self._entries)

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and type of an array, which is not read."""
        entry = self._entries[name]
        try:
            with self._zip.open(entry) as file:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = _VERSIONS[version](file)
                left = entry.file_size - file.tell()
        except _DAMAGE as error:
            raise zipfile.BadZipFile(f"{name} is no array") from error
        # Python's integers do not wrap.
        count = 1
        for length in shape:
            count *= int(length)
        if dtype.hasobject or count * dtype.itemsize != left:
            raise zipfile.BadZipFile(f"{name} has another size")
        return shape, dtype

    def read(self, name: str) -> np.ndarray:
        """An array; KeyError if there is none of this name."""
        self.header(name)
        try:
            with self._zip.open(self._entries[name]) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                # To the end, where the check sum is compared.
                file.read()
        except _DAMAGE as error:
            raise zipfile.BadZipFile(f"{name} is damaged") from error
        return array
