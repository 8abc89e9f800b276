"""Export for serving: files that answer calibrated, or abstain.

- Files: `export`, `FileModel`, `load_threshold`, `AnswerThreshold`.
- Statements: `check_certificate`, `CertificateCheck`, `save_records`.

Lives here: SavedModel, ONNX and LiteRT files, their verification, and
statements of what is promised of them or of logged answers. Not here: servers
(`examples/serving`).
Floor: above `selection`, beside `plots`.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.exporting.answer_threshold import (
        AnswerThreshold,
        load_threshold,
    )
    from keras_calib.exporting.certificates import save_records
    from keras_calib.exporting.file_model import FileModel
    from keras_calib.exporting.statement_check import (
        CertificateCheck,
        check_certificate,
    )
    from keras_calib.exporting.writer import export

__all__ = [
    "AnswerThreshold",
    "CertificateCheck",
    "FileModel",
    "check_certificate",
    "export",
    "load_threshold",
    "save_records",
]

__getattr__ = late_names(
    __name__,
    {
        "answer_threshold": "AnswerThreshold load_threshold",
        "certificates": "save_records",
        "file_model": "FileModel",
        "statement_check": "CertificateCheck check_certificate",
        "writer": "export",
    },
)
