"""Files are written by `replacing` alone, so that a kill leaves a whole one."""

import ast
import re

from repository_files import MODULES, parse, relative

# What makes, moves or fills a file, whatever it is called on.
METHODS = {
    *("write_text", "write_bytes", "touch", "tofile", "hardlink_to"),
    *("save", "savetxt", "savez", "savez_compressed", "savefig", "imsave"),
    *("save_model", "save_weights", "export", "dump", "write_table"),
    *("to_csv", "to_json", "to_parquet", "to_pickle", "to_html", "write_out"),
    *("GFile", "TFRecordWriter", "FileIO", "create_file_writer", "extractall"),
    *("TemporaryFile", "NamedTemporaryFile", "mkstemp", "mkdtemp"),
    *("TemporaryDirectory", "copyfile", "copytree", "move", "symlink_to"),
    *("rename", "renames", "write_module", "from_function", "fdopen"),
}
# `replace` of a text is no writing.
OF_OS = {"replace", "link", "open", "truncate", "mknod"}
OPENS = {"open", "ZipFile", "GzipFile", "LZMAFile", "BZ2File"}
WORDS = re.compile(rf"\b({'|'.join(METHODS | OF_OS | OPENS)}|copy\w+)\(")
# Line and reason of what is written otherwise.
EXCEPTIONS = {
    "backend/files.py": {
        "open(beside, 'w' if text else 'wb', **how)": "it is `replacing`",
        "os.open(folder, os.O_RDONLY)": "syncs the names in a folder",
        "os.replace(beside, path)": "it is `replacing`",
    },
    "backend/locks.py": {
        "os.open(self._place, os.O_RDWR | os.O_CREAT, 438)": "a lock file",
        "os.truncate(file, 0)": "a lock file",
    },
    "exporting/formats.py": {
        "tf2onnx.convert.from_function(function, specs, "
        "custom_op_handlers=dict(_HANDLERS), output_path=str(path))": (
            "a scratch folder, renamed by `written_whole`"
        ),
        "tempfile.TemporaryDirectory('.tmp', head, path.parent)": (
            "a scratch folder, renamed as a whole"
        ),
        "os.replace(written, path)": "from there",
        "os.rename(path, earlier)": "from there",
        "os.rename(written, path)": "from there",
        "os.rename(earlier, path)": "back, after a failure",
        "os.replace(beside, statement_path(path))": "from there",
    },
    "exporting/served_model.py": {
        "archive.write_out(str(path), verbose=False)": (
            "a scratch folder, renamed by `written_whole`"
        ),
    },
    "monitoring/files.py": {
        "probe.touch()": "an empty file, to see whether one may",
        "tf.io.TFRecordWriter(path)": "a log of TensorBoard, which grows",
    },
    "plots/display.py": {
        "figure.savefig(file, format=kind, **options)": "into memory",
    },
    "reporting/commands/plan.py": {
        "PlanDisplay(found).save(path)": "`Display.save`, by `replacing`",
    },
    "reporting/commands/report.py": {
        "report.save(given.out)": "`ReportPage.save`, by `replacing`",
    },
    "reporting/pictures.py": {
        "matplotlib_module('image').imsave(file, rgb, format='png')": (
            "into memory"
        ),
    },
    "predictions/writer.py": {
        "writer.write_table(table)": "into a file of `replacing`",
    },
    "predictions/columns.py": {
        "tempfile.mkdtemp(prefix='keras_calib-')": "a temporary folder",
        "open(self._path(name), 'ab')": "within it",
        "np.ascontiguousarray(array).tofile(file)": "within it",
        "open(padded, 'wb')": "within it",
        "rows.astype(dtype, copy=False).tofile(written)": "within it",
    },
    "reporting/commands/terminal.py": {
        "tempfile.TemporaryFile()": "catches what libraries print",
    },
    "reporting/commands/watched_logs.py": {
        "display.save(out)": "`Display.save`, by `replacing`",
        "monitor.save(given.state)": "`Monitor.save`, by `replacing`",
    },
}


def writes(tree):
    """Calls that may write a file, but for those into one of `replacing`."""
    safe = {
        (item.optional_vars.id, statement)
        for block in ast.walk(tree)
        if isinstance(block, ast.With)
        for item in block.items
        if isinstance(item.optional_vars, ast.Name)
        and ast.unparse(item.context_expr).startswith("replacing(")
        for statement in ast.walk(block)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Name) and (first.id, node) in safe:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = ast.unparse(getattr(node.func, "value", ast.Constant("")))
        of_os = owner in ("os", "shutil") and (
            name in OF_OS or name.startswith("copy")
        )
        if (
            name in METHODS
            or of_os
            or (name in OPENS and owner != "os" and not only_reads(node))
        ):
            yield ast.unparse(node)


def only_reads(call):
    """Whether `open`, of a path as function or method, says that it reads."""
    if any(x.arg is None for x in call.keywords):
        return False
    own = call.args[: isinstance(call.func, ast.Attribute)]
    modes = [x.value for x in call.keywords if x.arg == "mode"]
    # What a method gets first may be its mode, or the name of an entry.
    modes += call.args[1:2] + [x for x in own if isinstance(x, ast.Constant)]
    return all(
        isinstance(x, ast.Constant) and not {*"wax+"} & {*str(x.value)}
        for x in modes
    )


def test_files_are_written_by_replacing_alone():
    found = {
        relative(path): calls
        for path in MODULES
        if WORDS.search(path.read_text(encoding="utf-8"))
        and (calls := set(writes(parse(path))))
    }
    wanted = {path: {*lines} for path, lines in EXCEPTIONS.items()}
    assert found == wanted


def test_ways_to_write_a_file_are_seen():
    for call in (
        "open(path, 'w')",
        "open(path, mode='ab')",
        "open(path, 'w' if text else 'wb', **how)",
        "path.open('x')",
        "open(path, mode)",
        "io.open(path, 'r+')",
        "gzip.open(path, 'wb')",
        "zipfile.ZipFile(path, 'w')",
        "np.save(path, x)",
        "numpy.savez(path, x)",
        "path.write_text(text)",
        "json.dump(facts, file)",
        "frame.to_csv(path)",
        "figure.savefig(path)",
        "model.save(path)",
        "tf.io.gfile.GFile(path, 'w')",
        "os.replace(a, b)",
        "shutil.copy2(a, b)",
        "with replacing(path) as file:\n    np.savez(other, x)",
    ):
        assert list(writes(ast.parse(call))), call
    for call in (
        "open(path)",
        "open(path, 'rb')",
        "open(path, encoding='utf-8', newline='')",
        "path.open()",
        "archive.open(entry)",
        "text.replace(a, b)",
        "with replacing(path) as file:\n    np.savez(file, x)",
    ):
        assert not list(writes(ast.parse(call))), call
