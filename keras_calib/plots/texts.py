"""Texts of others, such as names of models and classes, as they can be shown.

Files of pictures and pages are XML or HTML in UTF-8: a lone surrogate cannot
be written, and one control character blanks a whole picture. matplotlib reads
what stands between two dollar signs as a formula.
"""

import re

__all__ = ["plain", "printable"]

# Neither of XML 1.0 nor to be seen; line ends and tabs are kept.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef"
    "\ufffe\uffff]"
)
# Letters of a name in a picture, at most.
_LONGEST = 80


def printable(text: str) -> str:
    r"""A text with escapes, as in Python, for what cannot be written.

    Args:
        text: Any text.

    Returns:
        The text, with `\x00` or `\ud800` in place of such characters.
    """
    return _UNPRINTABLE.sub(lambda x: ascii(x[0])[1:-1], text)


def plain(text: str) -> str:
    """A text that matplotlib draws letter by letter, on one line."""
    text = printable(str(text)).replace("\t", " ").replace("\n", " ")
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    # matplotlib leaves names out of a legend that begin so.
    text = f" {text}" if text.startswith("_") else text
    return text.replace("$", r"\$")
