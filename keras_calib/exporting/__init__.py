"""Export for serving: files that answer calibrated, or abstain.

Lives here: SavedModel, ONNX and LiteRT files, their verification and their
certificates. Not here: servers (`examples/serving`).
Floor: above `selection`, beside `plots`.
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from keras_calib.exporting.certificate_check import CertificateCheck
    from keras_calib.exporting.certificate_check import check_certificate
    from keras_calib.exporting.recalibration import Recalibration
    from keras_calib.exporting.recalibration import recalibrate_file
    from keras_calib.exporting.records import save_records
    from keras_calib.exporting.writer import export

__all__ = [
    "CertificateCheck",
    "Recalibration",
    "check_certificate",
    "export",
    "recalibrate_file",
    "save_records",
]

_MODULES = {
    "Recalibration": "recalibration",
    "export": "writer",
    "recalibrate_file": "recalibration",
    "save_records": "records",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: some need Keras."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "certificate_check")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found
