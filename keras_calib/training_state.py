"""All that training needs to go on, in one file that is whole or not there."""

import contextlib
import inspect
import json
import os
import random
import zipfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import backend

from keras_calib.checks import invalid
from keras_calib.numerics import to_numpy

__all__ = [
    "finished_epochs",
    "load_training_state",
    "plain_number",
    "save_training_state",
]

_VERSION = 1
_META = "meta"


def finished_epochs(path: str | os.PathLike) -> int:
    """How many epochs a backup holds, 0 if there is none.

    Args:
        path: The file of `ResumableBackup`.

    Returns:
        Number of epochs: the first one that is still to be trained.

    Raises:
        ValueError: If the file is not a backup.

    Example:

    >>> finished_epochs("no_such_file.npz")
    0

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/
    """
    path = Path(path)
    if not path.exists():
        return 0
    with _opened(path) as arrays:
        return _read_meta(path, arrays)["epochs"]


def save_training_state(
    path: str | os.PathLike,
    model: keras.Model,
    epochs: int,
    *,
    logs: Any = (),
    callbacks: Any = (),
    stopped: bool = False,
) -> Path:
    """Writes all that training needs to go on, in one operation.

    Args:
        path: The file; its folder is made.
        model: A compiled model.
        epochs: How many epochs are done.
        logs: The logs of each, as dicts of numbers.
        callbacks: Callbacks whose state is saved too.
        stopped: Whether a callback ended training with the last epoch, so
            that there is nothing left to train.

    Returns:
        The path.

    Reference:
        The way of writing: POSIX, rename,
        https://pubs.opengroup.org/onlinepubs/9699919799/functions/rename.html
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"variable_{i}": _storable(to_numpy(v))
        for i, v in enumerate(_variables(model))
    }
    states = []
    for i, callback in enumerate(callbacks):
        own = _own_state(callback)
        values = {k: v for k, v in own.items() if _is_plain(v)}
        states.append({k: plain_number(v) for k, v in values.items()})
        for name, value in own.items():
            for j, array in enumerate(_arrays(value)):
                arrays[f"callback_{i}_{name}_{j}"] = _storable(array)
    kind, keys, *rest = np.random.get_state()
    meta = {
        "version": _VERSION,
        "epochs": int(epochs),
        "stopped": bool(stopped),
        "optimizer": _optimizer_names(model),
        "logs": list(logs),
        "callbacks": states,
        "python_random": random.getstate(),
        "numpy_random": [kind, *rest],
    }
    arrays["numpy_random_keys"] = keys
    arrays |= _torch_states()
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), "uint8")
    _write_whole(path, arrays)
    return path


def load_training_state(
    path: str | os.PathLike, model: keras.Model
) -> dict | None:
    """Sets a model, its optimizer and random numbers as they were saved.

    Args:
        path: The file.
        model: A compiled and built model, made as the one that was saved.

    Returns:
        A dict with `epochs`, how many are done, `logs`, those of each, and
        `stopped`, whether a callback ended training with the last; and for
        `ResumableBackup` the state of `callbacks`. None if there is no file.

    Raises:
        ValueError: If the file is not a backup, or of another model; then
            nothing is changed.

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/
    """
    path = Path(path)
    if not path.exists():
        return None
    if not model.built:
        raise ValueError(
            invalid("`model` must be built before training", built=False)
        )
    with _opened(path) as arrays:
        state = _read_meta(path, arrays)
        stored = {name: arrays[name] for name in arrays.files}
    variables = _variables(model)
    values = [
        stored[f"variable_{i}"]
        for i in range(sum(name.startswith("variable_") for name in stored))
    ]
    _check_same(path, variables, values)
    names = _optimizer_names(model)
    if state.get("optimizer", names) != names:
        raise _of_another(path, optimizer=names, saved=state["optimizer"])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    version, internal, gauss = state["python_random"]
    random.setstate((version, tuple(internal), gauss))
    kind, *rest = state["numpy_random"]
    np.random.set_state((kind, stored["numpy_random_keys"], *rest))
    _set_torch_states(stored)
    for i, values in enumerate(state["callbacks"]):
        values.update(_saved_arrays(stored, f"callback_{i}_"))
    return state


def _check_same(path: Path, variables: list, values: list) -> None:
    """Raises unless values have the shapes of the variables."""
    facts: dict = {}
    if len(variables) != len(values):
        facts = {"variables": len(variables), "saved": len(values)}
    else:
        for v, saved in zip(variables, values, strict=True):
            if tuple(v.shape) != saved.shape:
                facts = {"variable": v.path, "shape": tuple(v.shape)}
                facts["saved"] = saved.shape
                break
    if facts:
        raise _of_another(path, **facts)


def _of_another(path: Path, **facts: Any) -> ValueError:
    rule = "the backup must be of this model and optimizer"
    return ValueError(invalid(rule, path=str(path), **facts))


def _optimizer_names(model: keras.Model) -> list[str]:
    """Classes of the optimizer, and of what it wraps: shapes are alike."""
    names, optimizer = [], model.optimizer
    while optimizer is not None:
        names.append(type(optimizer).__name__)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return names


def _variables(model: keras.Model) -> list:
    """Those of the model, and of its optimizer, which is built if need be."""
    optimizer = model.optimizer
    if optimizer is None:
        return list(model.variables)
    if not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)
    return [*model.variables, *optimizer.variables]


def _torch_states() -> dict:
    """Of torch's own random numbers, which Keras' dropout there draws on."""
    if backend.backend() != "torch":
        return {}
    import torch

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return {f"torch_random_{i}": x.numpy() for i, x in enumerate(states)}


def _set_torch_states(stored: dict) -> None:
    names = sorted(name for name in stored if name.startswith("torch_random_"))
    if backend.backend() != "torch" or not names:
        return
    import torch

    arrays = [stored[f"torch_random_{i}"] for i in range(len(names))]
    states = [torch.from_numpy(x.copy()) for x in arrays]
    torch.set_rng_state(states[0])
    if len(states) - 1 == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states[1:])


def _storable(array: np.ndarray) -> np.ndarray:
    """As a type that the file format knows; exact."""
    array = np.asarray(array)
    return array if array.dtype.kind in "biuf" else array.astype("float32")


def _own_state(callback: Any) -> dict:
    """Attributes of a callback that are not arguments of its constructor.

    Keras negates some of these when it begins to monitor.
    """
    given = inspect.signature(type(callback).__init__).parameters
    return {k: v for k, v in vars(callback).items() if k not in given}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | np.generic)


def plain_number(value: Any) -> Any:
    """A number of Python; NaN and infinities stay."""
    if value is None or isinstance(value, bool | int | float):
        return value
    value = to_numpy(value)
    return value.item() if value.ndim == 0 else value.tolist()


def _arrays(value: Any) -> list:
    """Arrays in a list, such as the best weights; else none."""
    is_list = isinstance(value, list)
    # TensorFlow gives a weight of no axis as a number of NumPy.
    if is_list and all(isinstance(x, np.ndarray | np.generic) for x in value):
        return value
    return []


def _saved_arrays(stored: dict, prefix: str) -> dict:
    found: dict = {}
    for name in stored:
        if name.startswith(prefix):
            attribute, _, place = name[len(prefix) :].rpartition("_")
            found.setdefault(attribute, {})[int(place)] = stored[name]
    return {k: [v[i] for i in sorted(v)] for k, v in found.items()}


def _write_whole(path: Path, arrays: dict) -> None:
    """The file is there as a whole, or the old one still is."""
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(part, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # The name too must outlive a failure of power.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    # Not by its path: numpy would leave a damaged file open.
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            arrays = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise _not_a_backup(path) from error
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise _not_a_backup(path)
        stack.enter_context(arrays)
        try:
            yield arrays
        except (EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise _not_a_backup(path) from error


def _read_meta(path: Path, arrays: Any) -> dict:
    if _META not in arrays.files:
        raise _not_a_backup(path)
    meta = json.loads(arrays[_META].tobytes())
    if meta["version"] != _VERSION:
        raise ValueError(
            invalid(
                f"the backup must be of version {_VERSION}",
                path=str(path),
                version=meta["version"],
            )
        )
    return meta


def _not_a_backup(path: Path) -> ValueError:
    return ValueError(
        invalid("`path` must be a file of `ResumableBackup`", path=str(path))
    )
