"""Text: what a language model said, as logits and confidences.

- Text: `token_log_probs`, `sequence_confidence`, `choice_logits`,
  `choice_labels`.

Lives here: log-probabilities of tokens, confidences of sequences, logits of
choices, and their labels. Not here: what is done with rows of classes,
however they came about (`calibrators`, `selection`).
Floor: beside `functional`, `losses` and `metrics`.
"""

from keras_calib.text.choices import choice_labels, choice_logits
from keras_calib.text.sequences import sequence_confidence, token_log_probs

__all__ = [
    "choice_labels",
    "choice_logits",
    "sequence_confidence",
    "token_log_probs",
]
