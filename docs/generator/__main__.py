"""Writes the pages of the site, copied and generated, into a folder.

python docs/generator build/docs
"""

import sys
from pathlib import Path

from staging import stage

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    stage(Path(sys.argv[1]))
