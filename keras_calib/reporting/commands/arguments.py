"""The form of a command: its texts, flags, checks and work.

Nothing here needs Keras or NumPy: help and errors of usage come at once.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from keras_calib.backend.errors import value_error
from keras_calib.predictions.roles import ROLES, check_told
from keras_calib.reporting.commands.terminal import Found, Progress, blamed


def refused(rule: str, text: str) -> argparse.ArgumentTypeError:
    """The error of what follows a flag."""
    return argparse.ArgumentTypeError(f"{rule}. Received: {text}")


def share(text: str, most: bool = False) -> float:
    """A number between 0 and 1; with `most` 1 too."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not (0.0 < found < 1.0 or (most and found == 1.0)):
        raise refused("must be a number between 0 and 1, such as 0.05", text)
    return found


def _sign(text: str) -> str:
    """The sign between columns, where \\t is a tab."""
    sign = text.replace("\\t", "\t")
    if len(sign) != 1:
        raise refused("must be one sign, and not that of --decimal", text)
    return sign


# What follows a flag, by its name in the help; others are texts. After FILE are
# the endings that it may have.
_TYPES = {"SHARE": share, "N": int, "ID": int, "SIGN": _sign}
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
        for name, text, endings in self._files(given):
            if endings and not text.lower().endswith(tuple(endings)):
                raise value_error(
                    f"{name} must be a file that ends in "
                    f"{' or '.join(endings)}",
                    **{name: text},
                )
        if given.separator == given.decimal:
            raise value_error(
                "--separator must be one sign, and not that of --decimal",
                **{"--separator": given.separator},
            )
        check_told(vars(given))
        self.check_own(given)

    def check_files(self, given: argparse.Namespace) -> None:
        """Raises ValueError for a file that is not there, before long work."""
        from keras_calib.backend.files import path_of

        for name, text, _ in self._files(given):
            if name in _WRITTEN:
                continue
            with blamed(f"{name}={text}"):
                try:
                    path_of(text).stat()
                except OSError as error:
                    raise ValueError(str(error.strerror)) from error

    def _files(
        self, given: argparse.Namespace
    ) -> Iterator[tuple[str, str, list[str]]]:
        """Flags, paths and possible endings of the files that are given."""
        for flag in (x for group in self.options.values() for x in group):
            name, _, kind = flag.partition(" FILE")
            if name == flag:
                continue
            told = getattr(given, name.removeprefix("--").replace("-", "_"))
            for text in told if isinstance(told, list) else [told]:
                if text is not None:
                    yield name, text, kind.split("|") if kind else []


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
_OF_READER = *ROLES, "votes", "multi_label", "class_names", "ignore_class"
READER_WORDS = {
    **{f"{k}=": flag for k, flag in flags(*_OF_READER).items()},
    "decimal": "--decimal",
}
