"""Where the tests find reference values and real data."""

import fnmatch
import functools
import gc
import inspect
import os
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

# Before a library reads them. On arrays this small threads mostly wait for
# each other: beside another busy process the tests of torch take five times
# the processor time, training in TensorFlow takes a tenth more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
# JAX writes an entry of its cache in place: another process would read half.
if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] += "/" + os.environ.get(
        "PYTEST_XDIST_WORKER", "one"
    )

import numpy as np
import pytest
from hypothesis import settings
from repeats import NO_CASES, REPEATS

# The same examples in every run: a failure can be looked into.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

pytest_plugins = ["cpu_budget"]

HAS_TENSORFLOW = find_spec("tensorflow") is not None
_DATA_VARIABLE = "KERAS_CALIB_DATA"


def pytest_sessionstart(session):
    """TensorFlow gets two devices, and leaves graphs of the fast tier alone.

    Replicas can then be tested without a process of their own, which would
    import all anew; devices must be there before TensorFlow is first used.

    Graphs of the fast tier are run a few times, as they were traced:
    TensorFlow would take an eighth of its time to rewrite them. Runs with slow
    tests have graphs as users get them.
    """
    option = session.config.option
    runs_tests = not getattr(option, "numprocesses", None)
    if not (runs_tests and HAS_TENSORFLOW):
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, devices)
    if option.markexpr == "not slow":
        tf.config.optimizer.set_experimental_options(
            {"disable_meta_optimizer": True}
        )
        operations_forget_where_they_were_made()


def operations_forget_where_they_were_made():
    """TensorFlow keeps the Python stack of each operation that it traces.

    That takes a tenth of the time of the fast tier, and errors in graphs
    alone show it. TensorFlow has no switch for it: this is its private part.
    """
    from tensorflow.python.framework import ops

    create = getattr(ops, "_create_c_op", None)
    if create and "extract_traceback" in inspect.signature(create).parameters:
        ops._create_c_op = functools.partial(create, extract_traceback=False)


def pytest_collection_modifyitems(items):
    """Cases that repeat a claim are slow."""
    cases = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            file = item.path.relative_to(Path(__file__).parent).as_posix()
            cases[file, item.originalname].append(item)
    for (file, test), several in cases.items():
        for pattern in REPEATS.get(file, {}).get(test, ()):
            found = [
                item
                for item in several
                if fnmatch.fnmatchcase(item.callspec.id, pattern)
            ]
            # One alone was asked for by its name.
            if not found and len(several) > 1:
                NO_CASES.append(f"{file}::{test}[{pattern}]")
            for item in found:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_not_searched():
    """Whatever a module leaves in caches is no garbage of the next ones.

    The graphs of thousands of tests are millions of objects, among which each
    full collection would look again.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def figures_are_closed():
    """pyplot keeps all until they are closed, and warns when there are 20."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def goldens():
    with np.load(Path(__file__).parent / "data" / "goldens.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def data_dir():
    """The folder of real data; its tests are marked `data`."""
    folder = os.environ.get(_DATA_VARIABLE)
    if not folder:
        pytest.skip(f"{_DATA_VARIABLE} does not name a folder of real data")
    return Path(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    has_data = os.path.isdir(os.environ.get(_DATA_VARIABLE, ""))
    if report.skipped and has_data and item.get_closest_marker("data"):
        report.outcome = "failed"
        report.longrepr = f"skipped although {_DATA_VARIABLE} is there"
    return report
