"""Writes recipes/README.md: how recipes combine, and what the papers print.

python examples/papers/results/tables.py
"""

import collections
import csv
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
RECIPES = FOLDER.with_name("recipes")
# Columns: those that no paper prints are left out.
_COLUMNS = {
    "accuracy, mIoU or AP": ("accuracy", "miou", "ap"),
    "ECE": ("ece", "ece_foreground_per_batch"),
    "AECE": ("aece", "aece_foreground_per_batch"),
    "AURC": ("aurc",),
    "temperature": ("temperature",),
}
_SOURCES = {
    "ACLS": "Park et al., ICCV 2023",
    "MbLS appendix": "Liu et al., CVPR 2022",
    "Label Relaxation": "Lienen & Hüllermeier, AAAI 2021",
    "Adaptive Label Smoothing": "Krothapalli & Abbott, 2020",
}
_TEXT = """\
# Recipes

A recipe is two files of flags: a set-up (data, network, optimizer, schedule)
and a loss. Any two combine, and flags after them change them:

```
python examples/papers/train_classifier.py --data_dir=DIR \\
    --flagfile=examples/papers/recipes/setups/cifar10_resnet50.flags \\
    --flagfile=examples/papers/recipes/losses/acls.flags --seed=1
```

`--task` in a set-up says which script it is for: `train_classifier.py`,
`train_segmentation.py`, `train_text.py` or `train_detection.py`, which takes
no loss, but a run of `train_classifier.py` to begin with.

Some losses need certain set-ups. Adaptive label smoothing needs one with
`--objects`, AdaFocal one with validation data, and `cape` one with two classes.
Methods that mix images or remember samples (CRL, `acls_ranking`, CaPE, pruning)
are not for pixels. A third file of `sweeps/` is a grid of hyperparameters for
`sweep.py`. One of `evaluations/` says how a paper evaluates if its set-ups
leave it open.

Comments in the files say where each number is from: paper and section, the
released code, or this project if neither has it. Three things hold for all of
them. `--coupled_decay` is the papers' weight decay as it is printed, added to
the gradient as torch does it, not half of it. Batch normalization has torch's
momentum (0.9 in Keras' terms) and epsilon (1e-5). Margins belong to the set-up:
6 for CIFAR-10, 10 elsewhere.

The files: {setups} set-ups, {losses} losses, {sweeps} sweeps.

Set-ups of this project, which train on a CPU, have no published numbers:
`digits_dense`, `fashion_mnist_dense_short`, `cifar10_resnet20_cpu`,
`cifar10_small_resnet`, `camvid_deeplabv3plus_small`, `newsgroups20`,
`tiny_imagenet_boxes_small` and `canvases_retinanet_small`. So do
`cifar10_vit_s16` and `tiny_imagenet_vit_s16`, which download no weights, while
the ViT-B/16 do.

Two sources are missing below. The paper on label smoothing and selective
classification (Xia et al., 2024) prints only curves. So its five set-ups
(`*_lssc` and `cityscapes_deeplabv3plus_resnet101`) and every AURC are missing.
The main text of MbLS, with the results on VOC of `voc_deeplabv3_mbls`, was not
at hand.

## What the papers print

All numbers of the tables, and those of the texts that runs can be compared
with, are in [published.csv](../results/published.csv), with deviations and more
measures: {rows} rows. All but temperatures, ranks and hours are fractions, not
percent. They are from

{sources}

In the table below,

- A name in brackets is the loss with other options: `acls[lambda1=0]` is
  `--flagfile=.../acls.flags --loss_option=lambda1=0`.
- `+temperature` is the loss, and temperature scaling after training;
  `+mc_dropout` the mean of several passes with dropout.
- `acls` is the paper's ACLS. Its numbers are most probably those of the
  released code, `acls_released`.
- *On* names the data that were measured. These are the test data of the set-up,
  or `validation`, held out of the training data. For ImageNet `V1` is its
  validation set, `V2` ImageNetV2, and `context` V1 with its objects painted
  over. OpenImages has `val` and `test`. For COCO it is the set-up that trained
  the backbone, with the loss of the row.
- *Temperature* is the one that `+temperature` found.
- *Chosen by* is the measure on held-out data that chose the hyperparameter.
- Where papers print different numbers, there are two.

ECE has 15 bins, but means different things:

- The ECE of Adaptive Label Smoothing is from pycalib, which takes fixed numbers
  for the mean confidences of bins over [1 / K, 1]. They are the columns
  `ece_pycalib` and `ece100_pycalib` of a run. In nine rows it is less than the
  difference of mean confidence and accuracy, which an ECE never is.
- The ECE of Label Relaxation is measured on test data drawn anew for each seed.
- On VOC the code of MbLS, which ACLS follows, leaves the background out and
  averages over batches. These are the columns `ece_foreground_per_batch` and
  `aece_foreground_per_batch` of a run.

Some numbers are doubtful, or of something else:

- Table 1 of Adaptive Label Smoothing does not say which images the networks
  were trained on. The `mask` images are assumed, because the text quotes their
  mean confidences.
- With temperature, MbLS and ACLS print different numbers for the same networks.
- In Table A of ACLS training failed with lambda1 = 0 and lambda2 = 0.015.
- 20 Newsgroups has 18,846 texts here, not 19,997 as in the paper.
- The detector on COCO is RetinaNet here; the numbers are of Faster R-CNN.

{table}

Two rows are this project's interpretation: CaPE for many classes,
`cape_top_label`, and Monte Carlo dropout. The paper gives neither its place nor
its rate. Train it by `tiny_imagenet_resnet50_dropout`, then call
`ensemble.py --passes=20`.

### Mean ranks

Label Relaxation averages ranks over set-ups. *Chosen by* is as above, where
`both` averages over accuracy and ECE. `compare.py --ties=lowest` prints these
beside the ranks of runs of the same set-ups.

{ranks}

### In the texts

The texts have shares of the training samples of the last epoch. They are those
that the regularizer leaves alone (`inactive_share`), whose prediction a step
changes (`prediction_flips`), and that have gamma 3 (`gamma_3_share`). They also
have the mean objectness of the images, its mean difference to the confidence,
and the hours of training on four V100. The text does not name the network of
the objectness and the hours: the `mask` images are assumed.

{texts}
"""


class Published(NamedTuple):
    """A row of published.csv; the fields are its columns, as text."""

    setup: str
    loss: str
    on: str
    tuned: str
    measure: str
    value: str
    std: str
    source: str


class Loss(NamedTuple):
    """A published loss.

    Attributes:
        stem: Stem of the name of its file.
        options: Options that differ, name to value.
        after: A further step, such as a temperature, or "".
    """

    stem: str
    options: dict[str, str]
    after: str


def read_published():
    """All rows of published.csv."""
    with open(FOLDER / "published.csv", encoding="utf-8", newline="") as file:
        return [Published(**row) for row in csv.DictReader(file)]


def parse_loss(text):
    """`stem[name=value,...]+after`, of which all but the stem may be absent.

    Raises:
        ValueError: If it is something else.
    """
    parts = re.fullmatch(r"([\w.]+)(?:\[([^]]+)\])?(?:\+(\w+))?", text)
    if not parts:
        raise ValueError(f"`text` must name a loss. Received: text={text!r}")
    stem, options, after = parts.groups(default="")
    pairs = (option.split("=") for option in options.split(",") if option)
    return Loss(stem, dict(pairs), after)


def readme():
    """The text of README.md."""
    rows = read_published()
    counts = collections.Counter(_paper(row) for row in rows)
    sources = [
        f"- {name}: {who}, {counts.pop(name)} rows"
        for name, who in _SOURCES.items()
    ]
    if counts:
        raise ValueError(
            f"`source` must be a key of the known sources. Received: {counts}"
        )
    return _TEXT.format(
        **{
            name: len(list((RECIPES / name).glob("*.flags")))
            for name in ("setups", "losses", "sweeps")
        },
        rows=len(rows),
        sources="\n".join(sources),
        table=_table([row for row in rows if _shown(row)]),
        ranks=_ranks([row for row in rows if "rank_" in row.measure]),
        texts=_texts([row for row in rows if ", Section " in row.source]),
    )


def _table(rows):
    # Sets of rows by set-up, in the order of the file.
    setups = {}
    for row in rows:
        groups = setups.setdefault(row.setup, {})
        groups.setdefault((row.loss, row.on, row.tuned), []).append(row)
    shown = {
        name: kinds
        for name, kinds in _COLUMNS.items()
        if any(row.measure in kinds for row in rows)
    }
    head = ["set-up", "loss", "on", "chosen by", *shown, "printed in"]
    lines = [_line(head), _line(["---"] * 4 + ["--:"] * len(shown) + ["---"])]
    for setup, groups in setups.items():
        for (loss, on, tuned), found in groups.items():
            cells = [f"[{setup}](setups/{setup}.flags)", _linked(loss)]
            cells += [on, tuned]
            cells += [_cell(found, kinds) for kinds in shown.values()]
            lines.append(_line([*cells, _printed(found)]))
    return "\n".join(lines)


def _shown(row):
    return "+" not in row.setup and ", Section " not in row.source


def _ranks(rows):
    head = ["set-ups", "loss", "chosen by", "accuracy", "ECE", "printed in"]
    lines = [_line(head), _line(["---"] * 3 + ["--:"] * 2 + ["---"])]
    groups = {}
    for row in rows:
        groups.setdefault(row[:2] + (row.tuned,), []).append(row)
    for (setups, loss, tuned), found in groups.items():
        names = setups.split("+")
        text = f"all {len(names)}" if len(names) > 2 else ", ".join(names)
        ranks = [
            _cell(found, (f"rank_{name}",)) for name in ("accuracy", "ece")
        ]
        lines.append(_line([text, f"`{loss}`", tuned, *ranks, _printed(found)]))
    return "\n".join(lines)


def _texts(rows):
    lines = [_line(["set-up", "loss", "on", "measure", "value", "printed in"])]
    lines += [_line(["---"] * 4 + ["--:", "---"])]
    for row in rows:
        cells = [row.setup, row.loss and f"`{row.loss}`", row.on, row.measure]
        lines.append(_line([*cells, row.value, row.source]))
    return "\n".join(lines)


def _linked(loss):
    return f"[`{loss}`](losses/{parse_loss(loss).stem}.flags)"


def _cell(rows, kinds):
    values = dict.fromkeys(row.value for row in rows if row.measure in kinds)
    return " / ".join(values)


def _printed(rows):
    """Sources, the name of each once: `ACLS, Tables 3, B, Footnote 1`."""
    tables = {}
    for row in rows:
        kind, _, number = row.source.rpartition(", ")[2].partition(" ")
        tables.setdefault(_paper(row), {}).setdefault(kind, {})[number] = None
    return "; ".join(
        ", ".join(
            [name]
            + [
                f"{kind}{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
                for kind, numbers in kinds.items()
            ]
        )
        for name, kinds in tables.items()
    )


def _paper(row):
    return row.source.rpartition(", ")[0]


def _line(cells):
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    (RECIPES / "README.md").write_text(readme(), encoding="utf-8")
