"""Coverage of the intervals over images that reports have of dense outputs.

Images are 24 x 32 pixels of 5 classes. Labels are the largest of smooth random
fields, and predictions those of the same fields with smooth noise, whose level
differs by image. So pixels of an image depend on each other, and images are
unlike. The truth is that of 6,000 images, of which test sets are drawn.

    python benchmarks/segments_coverage.py \
        --out=benchmarks/results/segments_coverage.md

It takes about two minutes on one CPU core.
"""

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.ndimage import gaussian_filter

from keras_calib.numerics.row_blocks import RowFacts
from keras_calib.reporting.segments import SegmentEvaluation

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 1000, "Test sets a column.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the images and draws.")
_OUT = flags.DEFINE_string("out", None, "File to write the report to.")

SIZES = (20, 60, 200)
SIDES, NUM_CLASSES, POPULATION = (24, 32), 5, 6000
OF_CLASSES = {
    "error": ("error", "low", "high"),
    "confidence_gap": tuple(
        f"confidence_gap{x}" for x in ("", "_low", "_high")
    ),
    "iou": tuple(f"iou{x}" for x in ("", "_low", "_high")),
}


def population(rng):
    """Labels and probabilities of all images."""

    def smooth(width):
        x = rng.normal(size=(POPULATION, *SIDES, NUM_CLASSES))
        x = gaussian_filter(x, (0, width, width, 0))
        return x / x.std()

    # The last two classes are rare.
    clean = smooth(4.0) - np.array([0.0, 0.0, 0.0, 1.0, 2.0])
    level = rng.gamma(2.0, 0.25, (POPULATION, 1, 1, 1))
    logits = 3.0 * (clean + level * smooth(1.5))
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    return clean.argmax(-1), probs / probs.sum(-1, keepdims=True)


def estimates(labels, probs):
    """Value and ends of each number of some images, by its name."""
    found = SegmentEvaluation(0, NUM_CLASSES, False)
    predicted, flat = probs.argmax(-1).reshape(-1), labels.reshape(-1)
    facts = RowFacts(predicted, probs.max(-1).reshape(-1), None)
    wrong = (predicted != flat).astype("float64")
    weight = np.ones(flat.size)
    found.add(flat, wrong, facts, weight, None, labels.shape, 0)
    told = {
        name: (x["value"], x["low"], x["high"])
        for name, x in found.results().items()
        if isinstance(x, dict)
    }
    for row in found.classes():
        for name, columns in OF_CLASSES.items():
            told[f"{name} of class {row['group']}"] = tuple(
                row[x] for x in columns
            )
    return told


def main(_):
    rng = np.random.default_rng(_SEED.value)
    labels, probs = population(rng)
    truth = estimates(labels, probs)
    hits = {name: dict.fromkeys(SIZES, 0) for name in truth}
    for count in SIZES:
        for _ in range(_NUM_DRAWS.value):
            drawn = rng.integers(0, POPULATION, count)
            found = estimates(labels[drawn], probs[drawn])
            for name, (value, _, _) in truth.items():
                _, low, high = found[name]
                # A class that no draw predicts has no interval, and is missed.
                inside = low is not None and low <= value <= high
                hits[name][count] += inside
    rows = [
        [name, f"{truth[name][0]:.4f}"]
        + [f"{x / _NUM_DRAWS.value:.3f}" for x in found.values()]
        for name, found in hits.items()
    ]
    header = ["number", "truth", *(f"{count} images" for count in SIZES)]
    publish(
        f"Coverage of 95 % intervals, {_NUM_DRAWS.value:,} test sets a column, "
        f"seed {_SEED.value}. Intervals of classes are of 99 %, as those of 5 "
        f"classes hold together. {machine()}.\n\n"
        + markdown_table(header, rows),
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
