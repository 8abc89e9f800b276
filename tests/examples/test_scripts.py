"""Every script of the examples: its flags, its docstring, its imports."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import BACKEND

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TEACHING = sorted(EXAMPLES.glob("*.py"))
SCRIPTS = [
    path
    for path in sorted(EXAMPLES.rglob("*.py"))
    if re.search(r"(?m)^    (app\.run|start)\(main", path.read_text("utf-8"))
]
# Beside the library: what the extra `examples`, or that of a script, brings.
INSTALLED = {"absl", "apache_beam", "keras", "keras_calib", "matplotlib"}
INSTALLED |= {"numpy", "pyarrow", "scipy", "sklearn", "tensorflow"}
INSTALLED |= {"tensorflow_datasets"}

HELP = """
import contextlib, io, json, runpy, sys
from pathlib import Path
from absl import flags

known = set(flags.FLAGS)
found = {}
for script in sys.argv[1:]:
    folder = Path(script).resolve().parent
    sys.path.insert(0, str(folder))
    sys.argv = [script, "--help"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    values = flags.FLAGS
    defined = []
    for name in set(values) - known:
        module = values.find_module_defining_flag(name)
        file = folder / f"{module.replace('.', '/')}.py"
        if module == script or file.is_file():
            defined.append(name)
    known |= {"help", "helpfull", "helpshort", "helpxml"} & set(values)
    found[script] = {
        "defined": sorted(defined),
        "not listed": sorted(
            name
            for name in defined
            if f"--{name}:" not in shown.getvalue()
            and f"--[no]{name}:" not in shown.getvalue()
        ),
    }
    for name in defined:
        delattr(values, name)
    values.unparse_flags()
print(json.dumps(found))
"""


@pytest.mark.skipif(BACKEND != "tensorflow", reason="they import TensorFlow")
@pytest.mark.slow
def test_help_lists_the_flags_of_every_script():
    pytest.importorskip("apache_beam")
    scripts = [str(path.relative_to(ROOT)) for path in SCRIPTS]
    assert len(scripts) > 15
    done = subprocess.run(
        [sys.executable, "-c", HELP, *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for script in scripts:
        assert found[script]["defined"], script
        assert not found[script]["not listed"], script
    text = found["examples/papers/train_text.py"]
    assert "learning_rate" in text["defined"]


def test_scripts_print_their_own_command_and_name_files_that_exist():
    for path in [*TEACHING, *SCRIPTS]:
        told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert f"python {path.relative_to(ROOT)}" in told, path
        for file in re.findall(r"\b(?:examples|benchmarks)/[\w/.-]+", told):
            assert (ROOT / file).is_file(), f"{path}: {file}"


def test_scripts_that_teach_are_short_and_stand_alone():
    assert len(TEACHING) == 9
    for path in TEACHING:
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 150, path
        for node in ast.walk(ast.parse(source)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                package = name.split(".")[0]
                known = INSTALLED | sys.stdlib_module_names
                assert package in known, f"{path}: {name}"


def test_scripts_that_teach_read_flags_in_main_alone():
    for path in TEACHING:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        flags = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.value).startswith("flags.DEFINE")
            for target in node.targets
        }
        for node in tree.body:
            if getattr(node, "name", "") == "main":
                continue
            read = {
                inner.value.id
                for inner in ast.walk(node)
                if isinstance(inner, ast.Attribute)
                and inner.attr == "value"
                and isinstance(inner.value, ast.Name)
            }
            assert not read & flags, f"{path}: {read & flags}"
