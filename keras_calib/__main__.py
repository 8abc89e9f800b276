"""The command line without its script: `python -m keras_calib --help`."""

import sys

from keras_calib.reporting.command_line import main

if __name__ == "__main__":
    sys.exit(main())
