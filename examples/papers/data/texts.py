"""20 Newsgroups as sequences of word numbers, and GloVe's vectors of them."""

import collections
import json
import lzma
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app

__all__ = ["TextSets", "load_texts", "read_vectors"]

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[^\sa-z0-9]")
# Of the numbers of words: padding, and words that are not in the vocabulary.
_SPECIAL = 2


class TextSets(NamedTuple):
    """Word numbers `(n, length)`, int32, and class ids `(n,)`.

    Attributes:
        train: Both, of the training texts.
        validation: Both, or None.
        test: Both.
        num_classes: Number of classes.
        words: The vocabulary: word number 2 is its first.
    """

    train: tuple
    validation: tuple | None
    test: tuple
    num_classes: int
    words: list[str]


def load_texts(folder, *, length, num_words=20_000):
    """20 Newsgroups, split by date.

    Args:
        folder: Holds `20news_bydate.jsonl.xz`, a line per text with `split`,
            `label` and `text`; None to let scikit-learn download them.
        length: Words of a text; those beyond are cut off.
        num_words: Size of the vocabulary, the most frequent of the training
            texts.

    Raises:
        app.UsageError: If the file is not there.
    """
    texts = _from_file(folder) if folder else _from_sklearn()
    names = sorted(set(texts["train"][1]))
    split_words = {
        part: [_WORD.findall(text.lower()) for text in rows]
        for part, (rows, _) in texts.items()
    }
    counts = collections.Counter(
        word for text in split_words["train"] for word in text
    )
    words = [word for word, _ in counts.most_common(num_words)]
    places = {word: place + _SPECIAL for place, word in enumerate(words)}
    sets = {}
    for part, (_, labels) in texts.items():
        ids = np.zeros((len(labels), length), "int32")
        for row, text in zip(ids, split_words[part], strict=True):
            numbers = [places.get(word, 1) for word in text[:length]]
            row[: len(numbers)] = numbers
        classes = np.array([names.index(label) for label in labels], "int32")
        sets[part] = (ids, classes)
    return TextSets(sets["train"], None, sets["test"], len(names), words)


def read_vectors(path, words, *, seed=0):
    """A matrix of vectors, a row per word number.

    Args:
        path: GloVe's text file, or an .npz file with `words` and `vectors`;
            None for random vectors of 50 numbers.
        words: The vocabulary.
        seed: Of the vectors of words that the file does not have: normal,
            with the standard deviation of the others.

    Returns:
        Shape `(num_words + 2, size)`, float32; padding is 0.
    """
    known, size, deviation = {}, 50, 0.5
    if path is not None:
        known = _read_npz(path) if path.endswith(".npz") else _read_glove(path)
        values = np.stack(list(known.values()))
        size, deviation = values.shape[1], values.std()
    random = np.random.default_rng(seed)
    shape = (len(words) + _SPECIAL, size)
    matrix = random.normal(0.0, deviation, shape).astype("float32")
    matrix[0] = 0.0
    for place, word in enumerate(words):
        if word in known:
            matrix[place + _SPECIAL] = known[word]
    return matrix


def _from_file(folder):
    path = Path(folder) / "20news_bydate.jsonl.xz"
    if not path.is_file():
        raise app.UsageError(
            "`--data_dir` must hold 20news_bydate.jsonl.xz, or be left out to "
            f"download the texts. Received: --data_dir={folder}"
        )
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {
        part: (
            [row["text"] for row in rows if row["split"] == part],
            [row["label"] for row in rows if row["split"] == part],
        )
        for part in ("train", "test")
    }


def _from_sklearn():
    from sklearn.datasets import fetch_20newsgroups

    parts = {
        part: fetch_20newsgroups(subset=part) for part in ("train", "test")
    }
    return {
        part: (found.data, [found.target_names[i] for i in found.target])
        for part, found in parts.items()
    }


def _read_npz(path):
    with np.load(path) as arrays:
        pairs = zip(arrays["words"], arrays["vectors"], strict=True)
        return {str(word): vector for word, vector in pairs}


def _read_glove(path):
    with open(path, encoding="utf-8") as file:
        rows = (line.rstrip().split(" ") for line in file)
        return {row[0]: np.array(row[1:], "float32") for row in rows}
