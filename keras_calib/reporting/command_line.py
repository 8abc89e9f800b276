"""What `keras-calib` does, which is also `python -m keras_calib`.

A command is one line in `COMMANDS` and one module in `reporting.commands`, of
its name, which has its `Command`. Only that module is imported. It imports what
needs Keras when it runs, so that help and errors of usage come at once.
"""

import argparse
import difflib
import importlib
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from keras_calib.reporting.commands.arguments import READER_WORDS, Command
from keras_calib.reporting.commands.terminal import (
    Progress,
    of_arguments,
    printed,
)
from keras_calib.version import __version__

# Commands, and what the help says of each.
COMMANDS = {
    "monitor": "alarms for a model in use, from its log",
    "plan": "how many labels a guarantee takes",
    "report": "how far a confidence can be trusted, from predictions",
    "threshold": "a threshold for answers, from a log with labels",
    "verify": "check the certificate of an exported model",
}
_EXIT_CODES = """\
exit codes: 0 done; 1 a file or its values are at fault; 2 the arguments are;
3 `monitor` has an alarm; 4 a condition of `report --fail-if` holds;
130 interrupted. Errors are one line on standard error.
"""
# Characters that a terminal obeys or cannot show.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        arguments: Those of the command line, or None for the process' own.
    """
    # Flags may be spelt with _ too.
    arguments = [
        re.sub(r"^--\w[\w-]*", lambda x: x[0].replace("_", "-"), text)
        for text in (sys.argv[1:] if arguments is None else arguments)
    ]
    parser = _Parser(
        prog="keras-calib",
        description="Calibration of classifiers, from the command line.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"keras-calib {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(
        required=True, metavar="command", dest="command"
    )
    parsers = {
        name: commands.add_parser(
            name, help=text, formatter_class=parser.formatter_class
        )
        for name, text in COMMANDS.items()
    }
    # A text may be the name of a command too: more is imported, no harm done.
    for name in {*COMMANDS} & {*arguments}:
        _fill(parsers[name], command_of(name))
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        own = parsers[given.command]
        name, flags = unknown[0].partition("=")[0], own._option_string_actions
        near = ", ".join(difflib.get_close_matches(name, flags))
        hint = f"; there is {near}" if near else ""
        own.error(f"unknown arguments: {' '.join(unknown)}{hint}")
    return _run(command_of(given.command), given, parsers[given.command])


def command_of(name: str) -> Command:
    """A command by its name."""
    home = f"keras_calib.reporting.commands.{name}"
    return importlib.import_module(home).COMMAND


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without all flags."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}. See `{self.prog} --help`.\n")


class _Once(argparse.Action):
    """The action of an option that is given once at most."""

    _is_given = False

    def __call__(self, parser, namespace, values, option_string=None):
        if self._is_given:
            raise argparse.ArgumentError(
                self, f"must be given once. Received also: {values}"
            )
        self._is_given = True
        setattr(namespace, self.dest, values)


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    # Of two values argparse would drop the first.
    parser.register("action", None, _Once)
    parser.description = command.description
    parser.epilog = f"{command.examples}\n{_EXIT_CODES}"
    command.add_arguments(parser)
    parser.add_argument(
        "--quiet", action="store_true", help="show no line of progress"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one object of JSON"
    )


def _run(
    command: Command, given: argparse.Namespace, parser: argparse.ArgumentParser
) -> int:
    progress = Progress(given.quiet)
    words = {**READER_WORDS, **command.words}

    def tell(kind: str, message: Any) -> None:
        progress.clear()
        text = _in_flags(message, words)
        print(f"{kind}: {text}", file=sys.stderr)

    def warn(message: Any, *_: Any, **__: Any) -> None:
        # Users of a command cannot use the line of code that warned.
        tell("warning", message)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            warnings.simplefilter("default", RuntimeWarning)
            with of_arguments():
                command.take_files(given)
                command.check(given)
            command.open(given)
            found = command.run(given, progress)
            progress.clear()
            if text := printed(found, given.json):
                print(text)
            if found.error:
                tell("error", found.error)
            return found.code
    except argparse.ArgumentError as error:
        progress.clear()
        return parser.error(_in_flags(error, words))
    except KeyboardInterrupt:
        progress.clear()
        return 130
    except MemoryError:
        tell("error", "there is not enough memory")
        return 1
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        tell("error", error)
        return 1


def _in_flags(message: Any, flags: dict[str, str]) -> str:
    """A message of the library in one line, with flags for arguments."""
    names = "|".join(flags)

    def flag(found: re.Match) -> str:
        return flags[found[1] or found[3]] + (found[2] or "")

    # A flag already is as it should be.
    pattern = rf"`({names})(=[^`]*)?`|(?<!--)\b({names})(?==)"
    text = str(message)
    if flags:
        text = re.sub(pattern, flag, text)
    text = " ".join(text.splitlines())
    return _UNPRINTABLE.sub(lambda x: ascii(x[0])[1:-1], text)
