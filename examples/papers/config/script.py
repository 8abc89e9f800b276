"""How a script starts, and how it says what is wrong with flags or data."""

import sys

from absl import app, flags


def start(main):
    """Parses the flags and calls `main` with the other arguments.

    Of wrong flags and missing data it prints the reason alone, and ends with
    exit code 1. absl would print all flags before the reason, or a traceback.
    """

    def told(argv):
        try:
            return main(argv)
        except (app.UsageError, flags.Error, OSError) as error:
            sys.exit(f"{argv[0]}: {error}\nPass --help to see the flags.")

    app.run(told)
