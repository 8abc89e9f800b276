"""The annotations, as a user's type checker reads them."""

import subprocess
import sys
import venv

import pytest
from repository_files import PACKAGE

pytest.importorskip("mypy")

USERS = """\
import keras
import numpy as np

import keras_calib as kc

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
loss = kc.ACLS(margin=1.0, from_logits=True)
model.compile("adam", loss=loss, metrics=[kc.ECE(from_logits=True)])
x, y = np.zeros((8, 4)), np.zeros(8, "int64")
scaling: kc.TemperatureScaling = kc.TemperatureScaling().fit_on(model, (x, y))
error: float = kc.ece(y, model.predict(x), from_logits=True)
coverage: float = kc.choose_threshold([0.9], [1], risk=0.1).coverage
picture: str = kc.ReliabilityDisplay(kc.Predictions(y, x)).plot().to_svg()
page: kc.reporting.Report = kc.report(model, (x, y))
"""
WRONG = """\
import keras_calib as kc

bins: str = kc.ece([0], [[1.0]])
kc.ece([0], [[1.0]], from_logit=True)
kc.ReliabilityDisplay(kc.Predictions([0], [[1.0]])).curve()
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """mypy for a file, beside an installed package: `py.typed` counts."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", with_pip=False)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "keras_calib").symlink_to(PACKAGE)

    def run(text):
        (folder / "user.py").write_text(text, encoding="utf-8")
        python = folder / "venv" / "bin" / "python"
        options = ["--ignore-missing-imports", "--python-executable", python]
        return subprocess.run(
            [sys.executable, "-m", "mypy", *options, "user.py"],
            cwd=folder,
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.slow
def test_code_as_users_write_it_passes(check):
    done = check(USERS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_wrong_types_and_arguments_are_found(check):
    found = check(WRONG).stdout
    assert "user.py:3: error: Incompatible types in assignment" in found
    assert 'user.py:4: error: Unexpected keyword argument "from_logit"' in found
    assert 'user.py:5: error: "ReliabilityDisplay" has no attribute' in found
