"""Export for serving: files that answer calibrated, or abstain.

Lives here: SavedModel, ONNX and LiteRT files, their verification and their
certificates. Not here: servers (`examples/serving`).
Floor: above `selection`, beside `plots`.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.exporting.certificate_check import (
        CertificateCheck,
        check_certificate,
    )
    from keras_calib.exporting.recalibration import (
        Recalibration,
        recalibrate_file,
    )
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

__getattr__ = late_names(
    __name__,
    {
        "certificate_check": "CertificateCheck check_certificate",
        "recalibration": "Recalibration recalibrate_file",
        "records": "save_records",
        "writer": "export",
    },
)
