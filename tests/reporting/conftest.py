"""What pages of reports need not make anew for each test."""

import functools

import pytest


@functools.cache
def cached_template():
    """`template` with a memory, for the tests of this folder alone."""
    from keras_calib.reporting import html

    return functools.cache(html.template)


@pytest.fixture(scope="module", autouse=True)
def templates_are_compiled_once():
    """A report compiles its template twice, which takes a third of its time."""
    from keras_calib.reporting import html

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "template", cached_template())
        yield


@pytest.fixture
def words_alone(monkeypatch):
    """Pages whose pictures are empty and whose intervals are rough."""
    from report_pages import few_replicates, pictures_left_out

    few_replicates(monkeypatch)
    pictures_left_out(monkeypatch)
