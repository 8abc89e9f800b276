"""20 Newsgroups as sequences of word numbers, and GloVe's vectors of them."""

import collections
import json
import lzma
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[^\sa-z0-9]")
# Characters that Keras' Tokenizer reads as spaces.
_BETWEEN = str.maketrans(
    dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " ")
)
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


def read_texts(setup, options):
    """The texts of a set-up, see `load_texts`."""
    return load_texts(
        options.data_dir,
        length=setup.sequence_length,
        num_words=setup.num_words,
        tokens=setup.tokens,
    )


def load_texts(folder, *, length, num_words=20_000, tokens="words"):
    """20 Newsgroups, split by date.

    Args:
        folder: Holds `20news_bydate.jsonl.xz`, a line per text with `split`,
            `label` and `text`; None to let scikit-learn download them.
        length: Words of a text; those beyond are cut off.
        num_words: Size of the vocabulary, the most frequent of the training
            texts.
        tokens: `"words"` for words, numbers and punctuation, with one number
            for all that are not in the vocabulary. The first of a text are
            kept. `"keras"` for Keras' `Tokenizer` and `pad_sequences`, without
            the heads of texts. These leave out punctuation and words that are
            not in the vocabulary, which has one word less, and keep the last
            words of a text.

    Raises:
        app.UsageError: If the file is not there.
    """
    texts = _from_file(folder) if folder else _from_sklearn()
    names = sorted(set(texts["train"][1]))
    plain = tokens == "words"
    tokenize = _words_of if plain else _keras_words_of
    split_words = {
        part: [tokenize(text) for text in rows]
        for part, (rows, _) in texts.items()
    }
    counts = collections.Counter(
        word
        for part in (["train"] if plain else texts)
        for text in split_words[part]
        for word in text
    )
    # Keras counts padding among the words.
    found = counts.most_common(num_words if plain else num_words - 1)
    words = [word for word, _ in found]
    places = {word: place + _SPECIAL for place, word in enumerate(words)}
    sets = {}
    for part, (_, labels) in texts.items():
        ids = np.zeros((len(labels), length), "int32")
        for row, text in zip(ids, split_words[part], strict=True):
            if plain:
                numbers = [places.get(word, 1) for word in text[:length]]
                row[: len(numbers)] = numbers
                continue
            numbers = [places[word] for word in text if word in places]
            row[max(0, length - len(numbers)) :] = numbers[-length:]
        classes = np.array([names.index(label) for label in labels], "int32")
        sets[part] = (ids, classes)
    return TextSets(sets["train"], None, sets["test"], len(names), words)


def read_vectors(path, words, *, seed=0):
    """A matrix of vectors, a row per word number.

    Args:
        path: GloVe's text file, or an .npz file with `words` and `vectors`;
            None for random vectors of 50 numbers.
        words: The vocabulary.
        seed: Seed of the vectors of words that are not in the file. They are
            normal, with the standard deviation of the others. None for zeros.

    Returns:
        Shape `(num_words + 2, size)`, float32; padding is 0.
    """
    known, size, deviation = {}, 50, 0.5
    if path is not None:
        known = _read_npz(path) if path.endswith(".npz") else _read_glove(path)
        values = np.stack(list(known.values()))
        size, deviation = values.shape[1], values.std()
    shape = (len(words) + _SPECIAL, size)
    matrix = np.zeros(shape, "float32")
    if seed is not None:
        random = np.random.default_rng(seed)
        matrix[:] = random.normal(0.0, deviation, shape)
        matrix[0] = 0.0
    for place, word in enumerate(words):
        if word in known:
            matrix[place + _SPECIAL] = known[word]
    return matrix


def _words_of(text):
    return _WORD.findall(text.lower())


def _keras_words_of(text):
    """Words by the filter of Keras' Tokenizer, after the head of a text."""
    text = text[max(0, text.find("\n\n")) :]
    return [w for w in text.lower().translate(_BETWEEN).split(" ") if w]


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
