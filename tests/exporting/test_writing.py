"""Export: a file is whole and in its place, or there is none."""

import os
from pathlib import Path

import pytest
from cases import BACKEND
from exported import trained

import keras_calib as kc
from keras_calib.exporting import formats, writer

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def replace(monkeypatch, made, **parts):
    """Writes or loads a format by other means."""
    changed = formats.FORMATS[made]._replace(**parts)
    monkeypatch.setitem(formats.FORMATS, made, changed)


def write_some(served, path, images):
    """A file in place of a model, where only what comes after it matters."""
    path.write_text("some")


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    model, _ = trained(3)

    def interrupted(*_):
        raise KeyboardInterrupt

    def full(served, path, images):
        write_some(served, path, images)
        raise OSError("no space left on device")

    for error, parts in (
        (OSError, {"write": full}),
        # While it is compared.
        (KeyboardInterrupt, {"write": write_some, "load": interrupted}),
        (RuntimeError, {"write": write_some, "load": lambda _: {}}),
    ):
        replace(monkeypatch, "savedmodel", **parts)
        with pytest.raises(error):
            kc.export(model, tmp_path / "deep" / "model")
        assert os.listdir(tmp_path / "deep") == []


def test_what_exists_is_left_alone(tmp_path):
    model, _ = trained(3)
    (tmp_path / "kept.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "kept.txt", tmp_path / "link"):
        with pytest.raises(
            ValueError, match="must not exist: give .*overwrite=T"
        ):
            kc.export(model, path)
        with pytest.raises(ValueError, match="must be an earlier export of"):
            kc.export(model, path, overwrite=True)
    assert (tmp_path / "kept.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["kept.txt", "link"]


@pytest.mark.parametrize("made", ["savedmodel", "onnx"])
def test_an_earlier_export_is_replaced_by_a_good_one_or_kept(
    tmp_path, monkeypatch, made
):
    model, _ = trained(3)
    path = tmp_path / ("m.onnx" if made == "onnx" else "m")
    file = path if made == "onnx" else path / "saved_model.pb"

    def export(text, *, is_good=True):
        def write(served, written, images):
            (written if made == "onnx" else made_folder(written)).write_text(
                text
            )

        def check(*_):
            assert not file.exists() or file.read_text() == "one"
            if not is_good:
                raise RuntimeError("answers otherwise")

        replace(monkeypatch, made, write=write, load=lambda _: {})
        monkeypatch.setattr(writer, "check_answers", check)
        kc.export(model, path, overwrite=True)

    def made_folder(written):
        written.mkdir()
        return written / "saved_model.pb"

    def full(source, target):
        if Path(source).name == "model":
            raise OSError("no space left on device")
        return rename(source, target)

    rename = os.rename
    export("one")
    with pytest.raises(RuntimeError, match="answers otherwise"):
        export("two", is_good=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space left"):
            export("two")
    assert file.read_text() == "one"
    export("two")
    assert file.read_text() == "two"
    assert os.listdir(tmp_path) == [path.name]


def test_what_stands_in_the_way_is_not_removed(tmp_path):
    model, _ = trained(3)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError):
        kc.export(model, tmp_path / "file" / "m")
    assert Path(tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("folder", [True, False])
def test_what_another_process_made_in_the_meantime_is_kept(
    tmp_path, monkeypatch, folder
):
    model, _ = trained(3)
    path = tmp_path / "m"
    kept = path / "kept.txt" if folder else path

    def write(served, written, images):
        if folder:
            written.mkdir()
        else:
            written.write_text("mine")

    def late(*_):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("theirs")

    replace(monkeypatch, "savedmodel", write=write, load=lambda _: {})
    monkeypatch.setattr(writer, "check_answers", late)
    with pytest.raises(ValueError, match="`path` must not exist. Received"):
        kc.export(model, path)
    assert kept.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["m"]


def test_a_file_is_made_where_there_are_no_links(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", link)
    model, _ = trained(3)
    # The ending says which format is meant.
    replace(monkeypatch, "onnx", write=write_some, load=lambda _: {})
    monkeypatch.setattr(writer, "check_answers", lambda *_: None)
    assert kc.export(model, tmp_path / "m.onnx").read_text() == "some"
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_paths_are_local_and_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    model, _ = trained(3)
    monkeypatch.chdir(tmp_path)
    for path in ("gs://bucket/m", Path("s3://bucket/m"), "file:///m"):
        with pytest.raises(ValueError, match="`path` must be of a local file"):
            kc.export(model, path)
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    replace(monkeypatch, "savedmodel", write=write_some, load=lambda _: {})
    monkeypatch.setattr(writer, "check_answers", lambda *_: None)
    assert kc.export(model, "~/m") == tmp_path / "home" / "m"
    assert os.listdir(tmp_path) == ["home"]
