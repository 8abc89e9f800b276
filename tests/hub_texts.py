"""Small tasks of KerasHub by tokenizer, and texts that tokenizers differ on."""

import io

import numpy as np
from hub_tasks import keras_hub

LENGTH = 12
SENTENCES = ["the film was good", "not bad", "a dull film", "it was 2019"]
# Two bytes of the last ones begin no character.
ODD = [
    *("", " ", "the film", " The  film ", "the film  ", "it was 20192019"),
    *("don't DON'T", "the\r\nfilm\n\n", "a\tb", "😀 the 😀film", "cafe\u0301"),
    *("日本語", "film" * 500, "the film " * 300, "a\x00b", "<s>[MASK]</s>"),
    *("\u00a0the\u200b", "ﬁlm", "good!!! $12.50", "१२३"),
]
TEXTS = np.array([*(x.encode() for x in ODD), b"\xff\xfe", b"the \xff"], object)


def byte_pairs():
    """RoBERTa with merges for a few words."""
    merges = ["t h", "th e", "Ġ f", "i l", "il m", "Ġf ilm", "o o", "Ġ Ġ"]
    # GPT-2's letters for the 256 bytes.
    parts = range(33, 127), range(161, 173), range(174, 256), range(256, 324)
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words += [chr(x) for part in parts for x in part]
    words += [x.replace(" ", "") for x in merges]
    tokenizer = keras_hub().models.RobertaTokenizer(
        {word: i for i, word in enumerate(words)}, merges
    )
    return _task("Roberta", tokenizer)


def sentence_pieces():
    """DeBERTa of pieces that SentencePiece finds in a few sentences."""
    import sentencepiece

    special = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(5 * SENTENCES),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **{f"{kind}_id": i for i, kind in enumerate(special)},
        **{f"{kind}_piece": piece for kind, piece in special.items()},
    )
    tokenizer = keras_hub().models.DebertaV3Tokenizer(model.getvalue())
    return _task("DebertaV3", tokenizer, bucket_size=4)


def _task(name, tokenizer, **options):
    """A task of one layer with weights so large that texts differ."""
    # Setting Keras' seed here would delete the tokenizer of sentence pieces.
    hub = keras_hub().models
    backbone = getattr(hub, f"{name}Backbone")(
        tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=8,
        dropout=0.0,
        max_sequence_length=LENGTH,
        **options,
    )
    preprocessor = getattr(hub, f"{name}TextClassifierPreprocessor")(
        tokenizer, sequence_length=LENGTH
    )
    task = getattr(hub, f"{name}TextClassifier")(
        backbone, num_classes=2, preprocessor=preprocessor
    )
    rng = np.random.default_rng(0)
    for weight in task.trainable_weights:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(size=weight.shape))
    return task
