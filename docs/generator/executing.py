"""Runs notebooks and keeps their outputs."""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from locations import ROOT
from nbclient import NotebookClient
from nbclient.exceptions import (
    CellExecutionError,
    CellTimeoutError,
    DeadKernelError,
)
from outputs import cleaned, uncoloured

_AT_ONCE = 2
_SECONDS_PER_CELL = 300


def execute_all(folder):
    """Executes the notebooks of a folder in place.

    Raises:
        SystemExit: A cell failed. Its notebook, name and error are told.
    """
    paths = sorted(Path(folder).glob("*.ipynb"))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        faults = [fault for fault in pool.map(_execute_file, paths) if fault]
    if faults:
        sys.exit("\n\n".join(faults))


def _execute_file(path):
    begin = time.perf_counter()
    try:
        notebook = execute(nbformat.read(path, as_version=4))
    except RuntimeError as error:
        return f"{path.name}: {error}"
    nbformat.write(notebook, path)
    print(f"{time.perf_counter() - begin:5.0f} s  {path.name}", flush=True)
    return None


def execute(notebook):
    """The notebook with outputs, run in a folder of its own.

    Raises:
        RuntimeError: A cell failed or took too long.
    """
    environment = os.environ | {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "KERAS_BACKEND": "tensorflow",
    }
    metadata, begun = notebook.metadata.copy(), []
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=_SECONDS_PER_CELL,
            record_timing=False,
            on_cell_start=lambda cell, cell_index: begun.append(cell.id),
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute(env=environment, stderr=subprocess.DEVNULL)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            told = uncoloured(str(error))
            raise RuntimeError(f"{begun[-1]} failed:\n{told}") from error
        for cell in notebook.cells:
            if cell.cell_type == "code":
                outputs = cleaned(cell.outputs, folder)
                cell.outputs = nbformat.from_dict(outputs)
    _check_paths(notebook)
    notebook.metadata = metadata
    nbformat.validate(notebook)
    return notebook


def _check_paths(notebook):
    """Nothing that is printed says where the notebook ran."""
    here = {tempfile.gettempdir(), str(ROOT), str(Path.home())} - {"/"}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            printed = output.get("text", "")
            printed += output.get("data", {}).get("text/plain", "")
            found = [path for path in sorted(here) if f"{path}/" in printed]
            if found:
                raise RuntimeError(f"{cell.id} prints a path in {found[0]}")
