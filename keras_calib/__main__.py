"""The command line: `python -m keras_calib report --help`."""

import sys

from keras_calib.reporting.command_line import main

if __name__ == "__main__":
    sys.exit(main())
