"""What a reader wants to see of the outputs of a notebook."""

import re

_STREAM = {"output_type": "stream", "name": "stdout"}
_MOST_LINES = 20
# What a terminal would not leave on its screen.
_OVERWRITTEN = re.compile(r"[^\n]*(?:\r(?!\n)|\x08+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOGGED = re.compile(r"^(?:INFO|WARNING):tensorflow:.*\n?", re.MULTILINE)
_PROGRESS = re.compile(r"^(?:(?:Epoch \d+/\d+|.*━.*)\n)+", re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


def cleaned(outputs, folder):
    """Outputs without progress, log lines, addresses and the end of long ones.

    Args:
        outputs: Of a cell, as nbformat has them.
        folder: Where the notebook ran. Its path is removed.
    """
    printed, kept = "", []
    for output in outputs:
        if output["output_type"] == "stream":
            printed += output["text"] * (output["name"] == "stdout")
            continue
        data = output.get("data", {})
        if "text/plain" in data:
            data["text/plain"] = _short(data["text/plain"])
        if not _ADDRESS.search(data.get("text/plain", "")):
            kept.append(output)
    printed = _OVERWRITTEN.sub("", uncoloured(printed))
    printed = _PROGRESS.sub(_last_epoch, _LOGGED.sub("", printed))
    if printed:
        text = _short(printed.replace(f"{folder}/", ""))
        kept.insert(0, _STREAM | {"text": text})
    return kept


def uncoloured(text):
    """Text without the colours of a terminal."""
    return _COLOURS.sub("", text)


def _last_epoch(match):
    """What the bars of a training ended with, without times."""
    lines = match[0].splitlines()
    epochs = [line for line in lines if line.startswith("Epoch")]
    values = [x for line in lines if (x := line.partition("/step - ")[2])]
    return ": ".join([*epochs[-1:], values[-1]]) + "\n" if values else ""


def _short(text):
    lines = text.splitlines(keepends=True)
    if len(lines) <= _MOST_LINES:
        return text
    left_out = f"[{len(lines) - _MOST_LINES} more lines]\n"
    return "".join([*lines[:_MOST_LINES], left_out])
