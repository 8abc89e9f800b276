"""What it costs that glibc gives memory back after each training step.

Milliseconds of a step of the recipe `mnist_dense` (two layers of 1,024 units,
batch 64, XLA) on random images and one core, with the environment as it is
and with glibc told to keep its memory. Trainings of both kinds in turns; of
each, what three epochs take more than one, divided by the steps of two.

    python benchmarks/glibc_memory.py --out=benchmarks/results/glibc_memory.md

About five minutes on 2 CPU cores; under Linux.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

_ROUNDS = flags.DEFINE_integer("rounds", 4, "Trainings of each kind.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_PAPERS = Path(__file__).parents[1] / "examples" / "papers"
_BATCH, _STEPS = 64, 600
_KEEP = {
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "1",
}
_ONE_CORE = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


def write_images(path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in {"train": _BATCH * _STEPS, "test": _BATCH}.items():
        images = random.integers(256, size=(count, 28, 28, 1), dtype="uint8")
        arrays[f"{part}_images"] = images
        arrays[f"{part}_labels"] = random.integers(10, size=count)
    np.savez(path, **arrays)


def seconds(images: Path, epochs: int, settings: dict[str, str]) -> float:
    """What a training takes that runs in a process of its own."""
    recipes = _PAPERS / "recipes"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                _PAPERS / "train_classifier.py",
                f"--flagfile={recipes}/setups/mnist_dense.flags",
                f"--flagfile={recipes}/losses/cross_entropy.flags",
                f"--data={images}",
                f"--batch_size={_BATCH}",
                f"--epochs={epochs}",
                f"--workdir={folder}",
                "--validation=0",
                "--verbose=0",
                "--noexport",
                "--jit",
            ],
            env={k: v for k, v in os.environ.items() if k not in _KEEP}
            | _ONE_CORE
            | settings,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (path,) = Path(folder).rglob("results.csv")
        with open(path, newline="") as file:
            (row,) = csv.DictReader(file)
    return float(row["seconds"])


def step_ms(images: Path, settings: dict[str, str]) -> float:
    one, three = (seconds(images, epochs, settings) for epochs in (1, 3))
    return 1e3 * (three - one) / (2 * _STEPS)


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.npz"
        write_images(images)
        pairs = [
            (step_ms(images, {}), step_ms(images, _KEEP))
            for _ in range(_ROUNDS.value)
        ]
    plain, kept = np.median(pairs, axis=0)
    ratios = [after / before for before, after in pairs]
    header = ["ms per step", "as it is", "memory kept", "ratio", "its range"]
    row = [
        "two layers of 1,024",
        f"{plain:.1f}",
        f"{kept:.1f}",
        f"{np.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    ]
    shown = " ".join(f"{name}={value}" for name, value in _KEEP.items())
    publish(
        f"{machine()}.\n\nOne core; medians of {_ROUNDS.value} trainings of "
        f"each kind, in turns. Memory kept:\n`{shown}`.\n\n"
        + markdown_table(header, [row]),
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
