"""Walks: the functions that a call comes to, in order, as a trace finds them.

python docs/generator/walks.py
python docs/generator/walks.py --write

The first line prints every call. The second renews the walks of
CONTRIBUTING.md, which have what one module calls of another, once.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from locations import ROOT

import keras_calib

PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- walks: python docs/generator/walks.py --write -->\n"
END = "<!-- end of walks -->\n"
_PACKAGE = os.path.dirname(keras_calib.__file__) + os.sep
# What is left out of the page: what is deeper, floors that all others stand on,
# and checks.
_DEEPEST = 3
_BELOW = re.compile(r"(backend|numerics)/|inputs/(checks|config)\.py")


class Call(NamedTuple):
    """A call of a function of the package.

    Attributes:
        depth: How many such calls it is inside of.
        file: Its module, relative to the package.
        name: Its qualified name.
        again: Whether it is a generator that goes on, which is no call.
    """

    depth: int
    file: str
    name: str
    again: bool = False

    @property
    def told(self) -> str:
        """The first sentence of its docstring, or nothing."""
        found: Any = sys.modules[
            "keras_calib." + self.file.removesuffix(".py").replace("/", ".")
        ]
        for part in self.name.split("."):
            found = getattr(found, part)
        text = " ".join((found.__doc__ or "").split("\n\n")[0].split())
        return re.split(r"(?<=\.) ", text)[0].rstrip(".:")


class Walk(NamedTuple):
    """All calls of the package that one call comes to.

    Attributes:
        title: The call, as a user writes it.
        calls: In order.
        num_values: How many calls returned a value other than None.
    """

    title: str
    calls: list[Call]
    num_values: int

    @property
    def counts(self) -> str:
        """Numbers of calls, modules and values."""
        files = [call.file for call in self.calls if not call.again]
        return (
            f"{len(files)} calls in {len(set(files))} modules, "
            f"{self.num_values} values returned"
        )


class Tracer:
    """Notes calls of the package between `start` and `stop`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.num_values = self._depth = 0
        self._before = sys.getprofile()

    def start(self) -> None:
        """Forgets what was noted before."""
        self.__init__()
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        # Comprehensions have frames in some versions of Python alone.
        if not code.co_filename.startswith(_PACKAGE) or (
            code.co_name.startswith("<")
        ):
            return
        is_generator = bool(code.co_flags & inspect.CO_GENERATOR)
        if event == "call":
            self._add(code, is_generator)
            self._depth += 1
        elif event == "return":
            self._depth -= 1
            # A generator is called once, and goes on many times.
            made = getattr(value, "gi_code", None) is code
            if made:
                self._add(code, False)
            self.num_values += value is not None and made == is_generator

    def _add(self, code: Any, again: bool) -> None:
        file = code.co_filename.removeprefix(_PACKAGE).replace(os.sep, "/")
        self.calls.append(Call(self._depth, file, code.co_qualname, again))


def walked(title: str, call: Callable[[], Any]) -> Walk:
    """The walk of a call when it is made a second time.

    The first one fills what is kept from call to call.
    """
    tracer = Tracer()
    for _ in range(2):
        tracer.start()
        try:
            call()
        finally:
            tracer.stop()
    return Walk(title, tracer.calls, tracer.num_values)


class _EnoughError(Exception):
    """Ends a report after the batch that was traced."""


def _walk_of_a_batch(labels: Any, logits: Any, selector: Any) -> Walk:
    """From one batch of a report to the next."""
    shape = logits.shape[1:]
    model = keras.Sequential([keras.Input(shape), keras.layers.Identity()])
    # A report works on small batches together.
    labels, logits = np.tile(labels, 14), np.tile(logits, (14, 1))
    tracer = Tracer()

    def batches() -> Iterator[tuple]:
        for _ in range(2):
            tracer.start()
            yield logits, labels
            tracer.stop()
        raise _EnoughError

    try:
        keras_calib.report(
            model, batches(), selector=selector, from_logits=True, verbose=0
        )
    except _EnoughError:
        pass
    finally:
        tracer.stop()
    title = "keras_calib.report(model, data, selector=selector), one batch"
    return Walk(title, tracer.calls, tracer.num_values)


def walks() -> list[Walk]:
    """Walks of a loss, a metric, a selector and a report."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 500)
    logits = rng.normal(size=(500, 10)) + 3.0 * np.eye(10)[labels]
    logits = logits.astype("float32")
    probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    loss = keras_calib.ACLS(margin=10.0, from_logits=True)
    metric = keras_calib.AURC()
    calibrator = keras_calib.TemperatureScaling().fit(labels, logits)
    selector = keras_calib.SelectiveClassifier(calibrator=calibrator)

    def fit() -> None:
        selector.fit(labels, logits, risk=0.1, delta=0.05)

    return [
        walked(
            "keras_calib.ACLS(...)(labels, logits)",
            lambda: loss(labels, logits),
        ),
        walked(
            "keras_calib.AURC().update_state(labels, probs)",
            lambda: metric.update_state(labels, probs),
        ),
        walked("selector.fit(labels, logits, risk=0.1, delta=0.05)", fit),
        _walk_of_a_batch(labels, logits, selector),
    ]


def shortened(walk: Walk) -> Iterator[Call]:
    """What one module calls of another, once, at the depth of what is left."""
    # Calls around the present one; of each its file, and whether it is told.
    inside: list[tuple[Call, bool]] = []
    known: set[tuple] = set()
    # Within a call that was told before nothing is told again.
    before: int | None = None
    for call in walk.calls:
        inside = [x for x in inside if x[0].depth < call.depth]
        if before is not None and call.depth <= before:
            before = None
        key = call.file, call.name
        if before is None and key in known and not call.again:
            before = call.depth
        depth = sum(told for _, told in inside)
        told = (
            before is None
            and depth <= _DEEPEST
            and not call.again
            and "<" not in call.name
            and not _BELOW.match(call.file)
            and (not inside or call.file != inside[-1][0].file)
        )
        if told:
            known.add(key)
            yield call._replace(depth=depth)
        inside.append((call, told))


def page_with_walks(page: str) -> str:
    """The page with its walks as they are now."""
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    parts = []
    for walk in walks():
        lines = [f"`{walk.title}`: {walk.counts}.\n"]
        for call in shortened(walk):
            told = f": {call.told}" if call.told else ""
            lines.append(
                f"{'  ' * call.depth}- `{call.name}` (`{call.file}`){told}"
            )
        parts.append("\n".join(lines))
    text = "\n\n".join(parts)
    return f"{head}{BEGIN}\n{text}\n\n{END}{tail}"


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page_with_walks(page), encoding="utf-8")
        return
    if sys.argv[1:]:
        sys.exit(__doc__.strip())
    for walk in walks():
        print(f"{walk.title}: {walk.counts}")
        for call in walk.calls:
            if not call.again:
                print(f"{'  ' * (call.depth + 1)}{call.file} {call.name}")


if __name__ == "__main__":
    main()
