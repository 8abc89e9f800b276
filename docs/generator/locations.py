"""Where the repository and its pages lie."""

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
