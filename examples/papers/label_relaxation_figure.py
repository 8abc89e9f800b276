r"""Figure 1 of Label Relaxation: what is asked for, among three classes.

    python examples/papers/label_relaxation_figure.py \
        --out=work/label_relaxation.png

draws both targets in the triangle of all distributions, where a probability is
the distance to a side. Left, label smoothing pulls every prediction to one
distribution between the label and the uniform one. Right, label relaxation
allows all distributions of the shaded set, and pulls a prediction outside to
the nearest of them. Grey lines are of equal loss, as keras_calib computes it.
"""

from pathlib import Path

import matplotlib as mpl
from absl import app, flags
from results.simplex import draw_targets

_ALPHA = flags.DEFINE_float(
    "alpha", 0.25, "Strength of both methods.", lower_bound=0.0, upper_bound=1.0
)
_OUT = flags.DEFINE_string(
    "out", "work/label_relaxation.png", "Path of the picture."
)


def main(_):
    mpl.use("Agg")
    path = Path(_OUT.value)
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_targets(_ALPHA.value, path)
    print(path)


if __name__ == "__main__":
    app.run(main)
