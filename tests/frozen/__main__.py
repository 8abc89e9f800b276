"""Makes frozen results anew: `python tests/frozen [SUBJECT ...]`.

It prints which keys changed, and by how much. CONTRIBUTING.md says when this
is allowed; `--check` prints the same and writes nothing.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_TESTS = Path(__file__).resolve().parents[1]
# In place of this folder, whose modules have names that others have too.
sys.path[:1] = [str(_TESTS.parent), str(_TESTS)]

from frozen import SUBJECTS  # noqa: E402
from frozen.stored import changes, computed, read_stored, tolerance, write  # noqa: E402


def main(arguments: list[str]) -> int:
    """Returns 1 if a subject is unknown, or changed and only checked."""
    only_checks = "--check" in arguments
    named = [x for x in arguments if x != "--check"]
    if unknown := set(named) - set(SUBJECTS):
        print(f"no such subjects: {sorted(unknown)}; known: {SUBJECTS}")
        return 1
    changed = 0
    for subject in named or SUBJECTS:
        found = computed(subject)
        told = changes(read_stored(subject), found, tolerance(subject))
        changed += len(told)
        for key, text in told.items():
            print(f"{subject}: {key}: {text}")
        print(f"{subject}: {len(told)} of {len(found)} results changed")
        # Files without a change keep the digits that they have.
        if told and not only_checks:
            write(subject, found)
    return int(only_checks and changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
