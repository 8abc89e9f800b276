"""The sample report: the page that the code of the quick start makes."""

import contextlib
import io
import re
import tempfile

from locations import DOCS

ADDRESS = "sample_report.html"
_PAGE = DOCS / "start.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def sample_report():
    """Address to content of the page.

    Raises:
        ValueError: The quick start makes no report.
    """
    space = {"__name__": "start"}
    # It saves the page where it runs.
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        for code in _BLOCK.findall(_PAGE.read_text(encoding="utf-8")):
            exec(compile(code, str(_PAGE), "exec"), space)
            if "report" in space:
                return {ADDRESS: space["report"].html}
    raise ValueError(f"No block of {_PAGE.name} makes a `report`")
