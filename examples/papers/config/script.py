"""How a script starts, and how it says what is wrong with flags or data."""

import sys

from absl import app, flags


def start(main):
    """Parses the flags and calls `main` with the other arguments.

    If flags are wrong or data are missing, it prints the reason alone and ends
    with exit code 1. absl would print all flags first, or a traceback.
    """

    def told(argv):
        try:
            return main(argv)
        except (app.UsageError, flags.Error, OSError) as error:
            sys.exit(f"{argv[0]}: {error}\nPass --help to see the flags.")

    app.run(told)
