"""The form of a command: its texts, flags, checks and work.

Nothing here needs Keras or NumPy: help and errors of usage come at once.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
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
# The form of files, and their classes.
FORM: Options = {
    "--class-names NAMES": (
        "names of the classes in the order of their ids, with commas between "
        "them; or a .txt file with one name in each line"
    ),
    "--ignore-class ID": "class id of samples that do not count",
    "--separator SIGN": (
        "sign between the columns of a .csv file; by default the one of , ; | "
        "and tab that is most frequent in its first line"
    ),
    "--decimal SIGN": {
        "default": ".",
        "choices": (".", ","),
        "help": "decimal point of a .csv file (%(default)s)",
    },
}
_OUTPUTS = "logits", "probs"
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
        open_own: Opens the file of a flag and finds its columns, without Keras;
            raises ValueError for one that is absent. Returns what reads it.
        run: Does the work; returns what to print.
        files: The flag whose files may be given without it.
        may_do_without: Whether no such file need be given.
    """

    description: str
    examples: str
    words: dict[str, str]
    options: dict[str, Options]
    check_own: Callable[[argparse.Namespace], None]
    open_own: Callable[[argparse.Namespace, str, str], Any]
    run: Callable[[argparse.Namespace, Progress], Found]
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
        given.class_names = _class_names(given.class_names)
        self.check_own(given)

    def open(self, given: argparse.Namespace) -> None:
        """Opens the files as `given.opened`: flag, path and what reads it.

        Raises ValueError for a file that is not there or lacks a column.
        """
        from keras_calib.backend.files import path_of

        given.opened = []
        for flag, text in self.read(given):
            with blamed(f"{flag}={text}"):
                try:
                    path_of(text).stat()
                except OSError as error:
                    raise ValueError(str(error.strerror)) from error
                found = self.open_own(given, flag, text)
            given.opened.append((flag, text, found))

    def read(self, given: argparse.Namespace) -> list[tuple[str, str]]:
        """Flags and paths of the files to read."""
        files = self._files(given)
        return [(flag, text) for flag, text, _ in files if flag not in _WRITTEN]

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


def _class_names(text: str | None) -> list[str] | None:
    """Names of classes from a list with commas, or a file of lines."""
    if text is None:
        return None
    names = text.split(",")
    if text.lower().endswith(".txt"):
        try:
            names = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise OSError(f"--class-names={text}: {error}") from error
    names = [name.strip() for name in names]
    if len(names) < 2 or len({*names}) < len(names) or "" in names:
        raise value_error(
            "--class-names must be names, at least two, each once",
            names=names[:20],
        )
    return names


def opened(path: Any, given: Mapping[str, Any], groups: Any = ()) -> Any:
    """What reads the predictions of a file, by the columns that are given."""
    from keras_calib.predictions.reader import Reader
    from keras_calib.predictions.roles import FileOptions

    own = {k: given.get(k) for k in FileOptions.__annotations__}
    own["groups"] = groups
    return Reader(path, {k: x for k, x in own.items() if x is not None})


def columns(*roles: str, **told: str) -> Options:
    """The flags of columns: they and their help are the same in all commands.

    What is `told` takes the place of the help of `ROLES`.
    """
    return {
        f"{flag} NAME{'S' * (x in _OUTPUTS)}": told.get(x, ROLES[x].told)
        for x, flag in flags(*roles).items()
    }


def flags(*names: str) -> dict[str, str]:
    """The flags of arguments that are called as in the library."""
    return {name: f"--{name.replace('_', '-')}" for name in names}


# How errors of the reader call its arguments here.
_OF_READER = *ROLES, "votes", "multi_label", "class_names", "ignore_class"
READER_WORDS = {
    **{f"{k}=": flag for k, flag in flags(*_OF_READER).items()},
    "decimal": "--decimal",
}
