"""What `keras-calib` does, which is also `python -m keras_calib`.

A command is a module with `DESCRIPTION`, `EXAMPLES`, `add_arguments(parser)`,
`check(given)` and `run(given, progress)`. Only that of the command at hand is
imported. It imports what needs Keras in `run`, so that help and errors of
usage come at once.
"""

import argparse
import contextlib
import importlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_calib.reporting.progress import Progress
from keras_calib.version import __version__

__all__ = ["COMMANDS", "main", "runs_as_command"]

# What a command does, and its module.
COMMANDS = {
    "report": (
        "an HTML report from files of predictions",
        "keras_calib.reporting.report_command",
    ),
}
_EXIT_CODES = """\
exit codes: 0 done; 1 a file or its values are at fault; 2 the arguments are;
130 interrupted. Errors are one line on standard error.
"""
# What arguments of Python are called here.
_FLAGS = {
    "risk": "--risk",
    "delta": "--delta",
    "ignore_class": "--ignore-class",
    "num_bins": "--bins",
    "class_names": "--classes",
    "path": "--out",
    "y_true": "labels",
    "y_pred": "predictions",
    "from_logits=True": "the array `logits` or columns `logit_0`, ...",
    "from_logits=False": "the array `probs` or columns `prob_0`, ...",
}
# What a terminal obeys or cannot show.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code.

    Args:
        arguments: Those of the command line, or None for the process' own.
    """
    arguments = [*(sys.argv[1:] if arguments is None else arguments)]
    parser = argparse.ArgumentParser(
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
    imported = {}
    for name, (text, place) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, formatter_class=parser.formatter_class
        )
        if name in arguments:
            module = importlib.import_module(place)
            imported[name] = command, module
            command.description = module.DESCRIPTION
            command.epilog = f"{module.EXAMPLES}\n{_EXIT_CODES}"
            module.add_arguments(command)
            command.add_argument(
                "--quiet", action="store_true", help="no line of progress"
            )
    given = parser.parse_args(arguments)
    command, module = imported[given.command]
    try:
        module.check(given)
    except ValueError as error:
        command.error(_flagged(error))
    return _run(module, given)


def runs_as_command() -> bool:
    """Whether this process is `keras-calib` or `python -m keras_calib`."""
    program = getattr(sys, "argv", None) or [""]
    if program[0] == "-m":
        # Python is still looking for the module that it will run.
        given = sys.orig_argv
        pairs = zip(given, given[1:], strict=False)
        return ("-m", "keras_calib") in pairs or "-mkeras_calib" in given
    return Path(program[0]).name in ("keras-calib", "keras-calib.exe")


def _run(module: Any, given: argparse.Namespace) -> int:
    progress = Progress(given.quiet)

    def tell(kind: str, message: Any) -> int:
        progress.clear()
        print(f"{kind}: {_flagged(message)}", file=sys.stderr)
        return 1

    try:
        with warnings.catch_warnings():
            # Without the code that they are from.
            warnings.showwarning = lambda x, *_, **__: tell("warning", x)
            _import_keras(progress)
            module.run(given, progress)
    except KeyboardInterrupt:
        progress.clear()
        return 130
    except MemoryError:
        return tell("error", "there is not enough memory")
    except (ValueError, TypeError, OSError, ImportError) as error:
        return tell("error", error)
    return 0


def _import_keras(progress: Progress) -> None:
    """Keras and its backend, without what this writes as it loads."""
    if "keras" in sys.modules:
        return
    progress.say("Loading Keras ...")
    with _without_log_lines():
        try:
            importlib.import_module("keras")
        except ImportError as error:
            raise ImportError(
                "Keras needs its backend: pip install "
                "'keras-calib[tensorflow]', or set KERAS_BACKEND to jax or "
                f"torch where that is installed. Received: {error}"
            ) from error


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Drops log lines of compiled code, which Python cannot switch off.

    Not if TF_CPP_MIN_LOG_LEVEL is set: somebody wants them.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            yield
            sys.stderr.flush()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _flagged(message: Any) -> str:
    """Words of the library, in one line, with what is a flag here."""
    names = "|".join(_FLAGS)

    def flag(found: re.Match) -> str:
        return _FLAGS[found[1] or found[3]] + (found[2] or "")

    pattern = rf"`({names})(=[^`]*)?`|\b({names})(?==)"
    text = " ".join(re.sub(pattern, flag, str(message)).splitlines())
    return _UNPRINTABLE.sub(lambda x: ascii(x[0])[1:-1], text)
