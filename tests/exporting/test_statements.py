"""What a certificate covers and says, without an export."""

import pytest

from keras_calib.exporting.statement import artefact_files, check_form

CHOW = {
    "certificate": 1,
    "kind": "chow",
    "keras_calib": "0.1",
    "calibrator": None,
    "digest": "0",
    "score": {"name": "msp", "scale": "log-odds"},
    "artefact": {"format": "savedmodel", "files": {}},
    "weights": {"sha256": "0", "variables": 0},
    "guarantee": {"method": "chow", "reject_cost": 0.1, "statement": "-"},
    "selection": {"threshold": 0.9},
    "data": {},
    "costs": {
        "num_classes": 2,
        "largest": 1.0,
        "one_cost": True,
        "matrix": None,
        "sha256": "0",
    },
}


def test_links_are_among_the_files_of_an_export(tmp_path):
    path = tmp_path / "export"
    (path / "assets").mkdir(parents=True)
    (path / "assets" / "names.txt").write_text("cat")
    before = artefact_files(path)
    assert list(before) == ["assets/names.txt"]
    # What a link leads to may change without a change of the export.
    outside = tmp_path / "outside"
    outside.mkdir()
    (path / "more").symlink_to(outside)
    (path / "assets" / "nowhere").symlink_to(tmp_path / "nothing")
    after = artefact_files(path)
    assert after.keys() - before.keys() == {"more", "assets/nowhere"}
    assert after["more"]["sha256"] == "no regular file"


def test_a_certificate_says_nothing_that_its_form_does_not_have():
    check_form(CHOW)
    with pytest.raises(ValueError, match=r"unknown=\['approved_by'\]"):
        check_form({**CHOW, "approved_by": "the authority"})
    for name in CHOW:
        with pytest.raises(ValueError, match="must have the facts|kind"):
            check_form({k: v for k, v in CHOW.items() if k != name})
