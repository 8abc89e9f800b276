"""Notebooks have the code of their pages, good links, and clean outputs."""

import ast
import base64
import json
import re
import subprocess
import sys
from pathlib import PurePosixPath

import pytest
from notebooks import link_line, notebook
from outputs import cleaned
from paths import ROOT
from written_pages import written_pages

PAGES, LINKED = written_pages()
MADE = {
    address: made
    for address, text in PAGES.items()
    if address.endswith(".md") and (made := notebook(address, text))
}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def sources(made, kind):
    """Of the cells of a kind; those that no page has carry a tag."""
    return [
        cell["source"]
        for cell in made["cells"]
        if cell["cell_type"] == kind and not cell["metadata"]
    ]


def code_of_page(text):
    lines, inside, before = [], False, ""
    for line in text.splitlines():
        if line == "```python" and not before.startswith("<!-- not run:"):
            inside = True
        elif line == "```":
            inside = False
        elif inside:
            lines.append(line)
        before = line
    return lines


def code_of_script(text):
    """Statements without the texts between them."""
    return [
        ast.dump(node)
        for node in ast.parse(text).body
        if not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )
    ]


def test_cells_are_the_code_of_their_page():
    for address, made in MADE.items():
        code = "\n".join(sources(made, "code"))
        if address.startswith("guides/"):
            script = ROOT / "examples" / f"{PurePosixPath(address).stem}.py"
            text = script.read_text(encoding="utf-8")
            assert code_of_script(code) == code_of_script(text), address
        else:
            assert code.splitlines() == code_of_page(PAGES[address]), address


def test_all_pages_with_code_and_all_guides_are_notebooks():
    guides = {address for address in PAGES if address.startswith("guides/")}
    with_code = {
        path.name
        for path in (ROOT / "docs").glob("*.md")
        if code_of_page(path.read_text(encoding="utf-8"))
    }
    assert guides
    assert {*MADE} == guides | with_code


def test_notebooks_install_the_package_first_and_have_fixed_names_of_cells():
    for address, made in MADE.items():
        title, install = made["cells"][:2]
        assert title["source"].startswith("# ")
        assert install["metadata"] == {"tags": ["install"]}
        assert '%pip install --quiet "keras-calib[' in install["source"]
        ids = [cell["id"] for cell in made["cells"]]
        assert ids == [f"cell-{i + 1}" for i in range(len(ids))]
        assert made == notebook(address, PAGES[address])


def words(text):
    """Those that are read: no code, picture, comment or address of a link."""
    not_read = (
        r"^```python\n.*?^```$|!\[.*?\]\(.*?\)|<!--.*?-->|\]\(.*?\)|\{.*?\}"
    )
    return {*re.findall(r"\w+", re.sub(not_read, "", text, flags=re.M | re.S))}


def test_texts_keep_every_word_of_the_page():
    for address, made in MADE.items():
        text = "\n".join(sources(made, "markdown"))
        assert words(PAGES[address]) <= words(text), address


def test_links_of_notebooks_lead_to_pages():
    for address, made in MADE.items():
        for link in LINK.findall(" ".join(sources(made, "markdown"))):
            if link.startswith("https://"):
                continue
            path = link.partition("#")[0]
            assert path.startswith("../"), f"{address}: {link}"
            path = path.removeprefix("../")
            page = re.sub(r"\.html$", ".md", path)
            copied = page.removeprefix("repository/").removesuffix("/index.md")
            generated = path.startswith(("methods/", "reference/", "sample_"))
            assert generated or page in PAGES or copied in LINKED, (
                f"{address}: {link}"
            )


def test_links_lead_to_the_published_site_if_there_is_one():
    text = "# A\n\n[b](b.md#c), [d](#d), [e](../e/f.py)\n\n```python\n1\n```\n"
    made = notebook("guides/a.md", text, site="https://site.example/kc")
    assert LINK.findall(made["cells"][2]["source"]) == [
        "https://site.example/kc/guides/b.html#c",
        "https://site.example/kc/guides/a.html#d",
        "https://site.example/kc/e/f.py",
    ]


def test_pictures_are_inside_and_displays_drawn_before_them():
    made = MADE["after_training.md"]
    at = [
        i
        for i, cell in enumerate(made["cells"])
        if cell["metadata"].get("tags") == ["drawn"]
    ]
    names = ["as_trained", "with_temperature"]
    drawn = [made["cells"][i]["source"] for i in at]
    assert drawn == [f"{name}.plot();" for name in names]
    shown = made["cells"][at[-1] + 1]["source"]
    inside = re.findall(r"!\[[^\]]+\]\(data:image/png;base64,([^)]+)\)", shown)
    files = [ROOT / f"docs/pictures/displays/{name}.png" for name in names]
    assert [*map(base64.b64decode, inside)] == [f.read_bytes() for f in files]
    for address, other in MADE.items():
        text = " ".join(sources(other, "markdown"))
        assert PAGES[address].count("![") == text.count("](data:image/")


@pytest.mark.parametrize(
    ("address", "repository", "line"),
    [
        (
            "start.md",
            "",
            "[Download this page as a notebook](notebooks/start.ipynb)"
            '{ download="start.ipynb" }',
        ),
        (
            "guides/rejecting.md",
            "owner/name",
            "[Download this page as a notebook](../notebooks/rejecting.ipynb)"
            '{ download="rejecting.ipynb" } · [Open in Colab]'
            "(https://colab.research.google.com/github/owner/name/blob/"
            "pages/notebooks/rejecting.ipynb)",
        ),
    ],
)
def test_pages_lead_to_their_notebook(address, repository, line):
    found = link_line(address, repository=repository, branch="pages")
    assert found == f"{line}\n{{ .notebook }}\n"


BAR = "\x1b[1m10/10\x1b[0m \x1b[32m━━━\x1b[0m \x1b[1m0s\x1b[0m 9ms/step"


@pytest.mark.parametrize(
    ("stream", "text", "kept"),
    [
        ("stdout", "ECE 0.1\n", "ECE 0.1\n"),
        ("stderr", "W0000 a log line\n", ""),
        ("stdout", "INFO:tensorflow:Assets written to: /tmp/a\nECE\n", "ECE\n"),
        ("stdout", f"\r{BAR}\x08\x08\x08\r{BAR}\nECE 0.1\n", "ECE 0.1\n"),
        (
            "stdout",
            "".join(
                f"Epoch {i}/2\n\r{BAR} - loss: 9\x08\x08\r{BAR} - loss: {i}\n"
                for i in (1, 2)
            ),
            "Epoch 2/2: loss: 2\n",
        ),
        ("stdout", f"\r{BAR} - ece: 0.1\n\r{BAR}\n", "ece: 0.1\n"),
        ("stdout", "/tmp/here/run/a.csv\n", "run/a.csv\n"),
        ("stdout", "a\n" * 20, "a\n" * 20),
        ("stdout", "a\n" * 25, "a\n" * 20 + "[5 more lines]\n"),
    ],
)
def test_printed_outputs_are_cleaned(stream, text, kept):
    output = {"output_type": "stream", "name": stream, "text": text}
    found = cleaned([output], "/tmp/here")
    assert [part["text"] for part in found] == [kept] * bool(kept)


def test_results_without_a_name_are_left_out():
    outputs = [
        {"output_type": "execute_result", "data": {"text/plain": text}}
        for text in ("<History at 0x7f3a>", "TemperatureScaling(2.0)")
    ]
    assert cleaned(outputs, "/tmp/here") == outputs[1:]


def executed(folder):
    """Exit status and errors, of a process as of `make notebooks`."""
    line = "import sys, executing; executing.execute_all(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", line, folder],
        cwd=ROOT / "docs" / "generator",
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_notebook_runs_and_keeps_prints_and_pictures(tmp_path):
    pytest.importorskip("nbclient")
    path = tmp_path / "segmentation.ipynb"
    path.write_text(json.dumps(MADE["segmentation.md"]), encoding="utf-8")
    assert executed(tmp_path)[0] == 0
    ran = json.loads(path.read_text(encoding="utf-8"))
    before = MADE["segmentation.md"]["cells"]
    for cell, old in zip(ran["cells"], before, strict=True):
        assert "".join(cell["source"]) == old["source"]
        assert cell["id"] == old["id"]
        assert "execution" not in cell["metadata"]
    outputs = [o for cell in ran["cells"] for o in cell.get("outputs", ())]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    printed = ["".join(o["text"]) for o in outputs if o.get("text")]
    assert len(printed) == 3
    assert re.search(r"image_ece +0\.\d+ \(0\.\d+ to 0\.\d+\)\n", printed[0])
    assert ran["metadata"] == MADE["segmentation.md"]["metadata"]


@pytest.mark.slow
def test_a_notebook_that_fails_is_named_with_its_cell(tmp_path):
    pytest.importorskip("nbclient")
    code = {
        "fails": "1 / 0",
        "shows": "import tempfile\nprint(tempfile.gettempdir() + '/a')",
    }
    for name, line in code.items():
        made = notebook("a.md", f"# A\n\n```python\n{line}\n```\n")
        path = tmp_path / f"{name}.ipynb"
        path.write_text(json.dumps(made), encoding="utf-8")
    status, told = executed(tmp_path)
    assert status == 1
    assert "fails.ipynb: cell-3 failed" in told
    assert "ZeroDivisionError" in told
    assert "shows.ipynb: cell-3 prints a path in" in told
