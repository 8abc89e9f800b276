"""A complete file in its place, or nothing."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_calib.backend.errors import invalid, value_error
from keras_calib.exporting.formats import Signatures

__all__ = [
    "check_replaced",
    "exact_float32",
    "put",
    "scratch_of",
    "written_and_loaded",
]


def check_replaced(path: Path, made: str, overwrite: bool) -> None:
    """Raises unless what is at the path is an export, to be overwritten."""
    if not overwrite:
        raise value_error(
            "`path` must not exist: give a new one, such as the version "
            "'serving/2', or `overwrite=True`",
            path=str(path),
        )
    file = path / "saved_model.pb" if made == "savedmodel" else path
    if path.is_symlink() or not file.is_file():
        raise value_error(
            "`path` must be an earlier export of this format, or not exist, "
            "with `overwrite=True`",
            path=str(path),
            format=made,
        )


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Context in which GPUs multiply float32 exactly, as other runtimes do."""
    import tensorflow as tf

    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def scratch_of(path: Path) -> Iterator[Path]:
    """A path to write to, in a temporary folder beside the final path.

    A crash leaves nothing incomplete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f".{path.name[:50]}."
    with tempfile.TemporaryDirectory(".tmp", head, path.parent) as scratch:
        yield Path(scratch) / "model"


def written_and_loaded(
    write: Callable[[Path], None],
    load: Callable[[Path], Signatures],
    written: Path,
    made: str,
) -> Signatures:
    """Writes and loads a model; RuntimeError if the format cannot hold it."""
    step = "written"
    try:
        write(written)
        step = "loaded"
        return load(written)
    except Exception as error:
        if step == "written" and isinstance(error, OSError | MemoryError):
            raise
        raise RuntimeError(
            invalid(
                f"`model` cannot be {step} as {made}, and nothing "
                "was kept: choose another `format`, or change what the "
                "error names",
                error=f"{type(error).__name__}: {str(error)[:400]}",
            )
        ) from error


def put(written: Path, path: Path, made: str, overwrite: bool) -> None:
    """Renames what was written to its place."""
    if overwrite and os.path.lexists(path):
        check_replaced(path, made, overwrite)
        _replace(written, path)
    else:
        _move(written, path)


def _replace(written: Path, path: Path) -> None:
    """Renames in place of an earlier export, which stays if that fails."""
    if written.is_file():
        os.replace(written, path)
        return
    # No folder is renamed over a full one. The earlier one is deleted with the
    # folder of the new one.
    earlier = written.with_name("earlier")
    try:
        os.rename(path, earlier)
        os.rename(written, path)
    except BaseException:
        if not os.path.lexists(path):
            os.rename(earlier, path)
        raise


def _move(written: Path, path: Path) -> None:
    """Renames, unless another process has created the path meanwhile."""
    try:
        # A renamed folder replaces only an empty one, and a link nothing.
        (os.rename if written.is_dir() else os.link)(written, path)
    except OSError as error:
        if os.path.lexists(path):
            raise value_error("`path` must not exist", path=str(path)) from (
                error
            )
        # Some file systems have no links.
        os.rename(written, path)
