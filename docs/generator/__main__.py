"""Writes the pages of the site, copied and generated, into a folder.

python docs/generator build/docs
python docs/generator build/docs --execute

The second line also runs the notebooks of the guides, in a few minutes.
"""

import sys
from pathlib import Path

from notebooks import FOLDER
from staging import stage

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--execute"]):
        sys.exit(__doc__.strip())
    folder = Path(sys.argv[1])
    stage(folder)
    if sys.argv[2:]:
        from executing import execute_all

        execute_all(folder / FOLDER)
