"""The form of a command: its texts, flags, checks and work.

Nothing here needs Keras or NumPy: help and errors of usage come at once.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_calib.backend.errors import value_error
from keras_calib.predictions.roles import ROLES
from keras_calib.reporting.commands.terminal import Found, Progress, blamed

# What follows a flag, by its name in the help; others are texts.
_TYPES = {"SHARE": float, "N": int, "ID": int}
# Flags, with the name of what follows, and their help or what argparse takes.
Options = dict[str, str | dict[str, Any]]

DELTA: Options = {
    "--delta SHARE": {
        "default": 0.05,
        "help": "probability that the guarantee fails (%(default)s)",
    }
}
# The form of text files.
FORM: Options = {
    "--separator SIGN": (
        "sign between the columns of a .csv file; by default the one of , ; | "
        "and tab that is most frequent in its first line"
    ),
    "--decimal": {
        "default": ".",
        "choices": (".", ","),
        "help": "decimal point of a .csv file (%(default)s)",
    },
}
# Flags that an output is written to, or that need not be there yet.
_WRITTEN = "--out", "--state"


class Command(NamedTuple):
    """A command of `keras-calib`.

    Attributes:
        description: What its help says first.
        examples: What its help says last.
        words: How errors call the library's arguments here.
        options: Its flags, by the title of their group or "".
        check_own: Raises ValueError for arguments that are wrong, alone or
            together.
        run: Does the work; returns what to print, None if it printed.
        files: The flag whose files may be given without it.
        may_do_without: Whether no such file need be given.
    """

    description: str
    examples: str
    words: dict[str, str]
    options: dict[str, Options]
    check_own: Callable[[argparse.Namespace], None]
    run: Callable[[argparse.Namespace, Progress], Found | None]
    files: str = ""
    may_do_without: bool = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Gives a parser the flags of the command."""
        if self.files:
            told = f"the same as --{self.files}"
            parser.add_argument("files", nargs="*", metavar="FILE", help=told)
        for title, arguments in self.options.items():
            group = parser.add_argument_group(title) if title else parser
            for flag, told in arguments.items():
                name, *value = flag.split()
                given: dict[str, Any] = {"metavar": value[0]} if value else {}
                given |= {"type": _TYPES.get(*value)} if value else {}
                given |= {"help": told} if isinstance(told, str) else told
                group.add_argument(name, **given)

    def take_files(self, given: argparse.Namespace) -> None:
        """Joins files without a flag to those of theirs; none is refused."""
        if not self.files:
            return
        kept = getattr(given, self.files)
        if isinstance(kept, list):
            setattr(given, self.files, [*kept, *given.files])
            return
        found = [x for x in (kept, *given.files) if x is not None]
        if not found and self.may_do_without:
            return
        if len(found) != 1:
            raise value_error(
                f"One file must be given, by --{self.files} or alone",
                **{f"--{self.files}": found},
            )
        setattr(given, self.files, found[0])

    def check(self, given: argparse.Namespace) -> None:
        """Raises ValueError for arguments that are wrong."""
        self.check_own(given)
        _check_form(given)

    def check_files(self, given: argparse.Namespace) -> None:
        """Raises ValueError for a file that is not there, before long work."""
        from keras_calib.backend.files import path_of

        for flag in (x for group in self.options.values() for x in group):
            name, *value = flag.split()
            if value != ["FILE"] or name in _WRITTEN:
                continue
            told = getattr(given, name.removeprefix("--").replace("-", "_"))
            for text in told if isinstance(told, list) else [told]:
                if text is None:
                    continue
                with blamed(f"{name}={text}"):
                    try:
                        path_of(text).stat()
                    except OSError as error:
                        raise ValueError(str(error.strerror)) from error


def columns(*roles: str, **told: str) -> Options:
    """The flags of columns: they and their help are the same in all commands.

    What is `told` takes the place of the help of `ROLES`.
    """
    found = {x: told.get(x, ROLES[x].told) for x in roles}
    return {f"--{x.replace('_', '-')} NAME": text for x, text in found.items()}


def flags(*names: str) -> dict[str, str]:
    """The flags of arguments that are called as in the library."""
    return {name: f"--{name.replace('_', '-')}" for name in names}


# How errors of the reader call its arguments here.
READER_WORDS = {
    **{f"{k}=": flag for k, flag in flags(*ROLES).items()},
    **{
        f"{k}=": flag
        for k, flag in flags("votes", "multi_label", "class_names").items()
    },
    "decimal": "--decimal",
}


def _check_form(given: argparse.Namespace) -> None:
    """Takes \\t for a tab; ValueError for a separator of several signs."""
    if given.separator is None:
        return
    given.separator = given.separator.replace("\\t", "\t")
    if len(given.separator) != 1 or given.separator == given.decimal:
        raise value_error(
            "--separator must be one sign, and not that of --decimal",
            **{"--separator": given.separator, "--decimal": given.decimal},
        )


def check_shares(given: argparse.Namespace, names: Iterable[str]) -> None:
    """Raises ValueError for a share out of (0, 1); a coverage may be 1."""
    for name in names:
        share = getattr(given, name)
        most = share == 1.0 and name == "coverage"
        if share is not None and not (0.0 < share < 1.0 or most):
            raise value_error(
                f"`{name}` must be a number between 0 and 1, such as 0.05",
                **{name: share},
            )


def check_ending(flag: str, path: str | None, endings: Sequence[str]) -> None:
    """Raises ValueError for the path of a file of another kind."""
    if path is not None and Path(path).suffix.lower() not in endings:
        raise value_error(
            f"{flag} must be a file that ends in {' or '.join(endings)}",
            **{flag: path},
        )
