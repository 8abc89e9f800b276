"""Imports at first use: Keras, which takes seconds, and optional packages."""

import contextlib
import importlib
import importlib.abc
import sys
import types
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from keras_calib.backend.keywords import answering


def imported(name: str, what: str, extra: str) -> Any:
    """A module of a package; ImportError says how to install it for what."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{what} needs {package}: pip install 'keras-calib[{extra}]'"
        ) from error


class _Late:
    """Stands for a module, and imports it when an attribute is asked for.

    An error says which extra of this library installs it, if one does.
    """

    def __init__(self, name: str, extra: str | None = None):
        self._address, self._extra = name, extra

    def __getattr__(self, attribute: str) -> Any:
        # Tools that inspect modules ask every object for such names.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        try:
            # Some import what they need when a name is asked for.
            found = getattr(importlib.import_module(self._address), attribute)
        except ImportError as error:
            if self._extra is None:
                raise
            raise ImportError(
                f"This needs {self._address}: "
                f"pip install 'keras-calib[{self._extra}]'"
            ) from error
        setattr(self, attribute, found)
        return found


jax: Any = _Late("jax")
tensorflow: Any = _Late("tensorflow", "tensorflow")
tensorflow_datasets: Any = _Late("tensorflow_datasets", "tfds")
tensorflow_probability: Any = _Late("tensorflow_probability", "bayes")
torch: Any = _Late("torch")


def keras_module(name: str) -> Any:
    """The module, if Keras is loaded; else one that loads it at its first use.

    Records are handled without Keras, also where it is not installed.
    """
    if "keras" in sys.modules:
        return importlib.import_module(name)
    return _Late(name)


def late_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a name when it is first used.

    `modules` are those of the package to the public names of each, separated by
    spaces.
    """
    homes = {
        x: module for module, names in modules.items() for x in names.split()
    }

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = importlib.import_module(f"{package}.{homes[name]}")
        found = answering(getattr(module, name))
        setattr(sys.modules[package], name, found)
        return found

    return imported


class Whole(importlib.abc.MetaPathFinder):
    """The packages of a library, and the names that its top has of them.

    The top has those in its `__all__`; `dir` shows them and the packages.

    Keras finds the classes of a file among those that are registered, and
    imports nothing for it. So all packages are imported as soon as Keras is,
    whoever imports it: before this package, after it, or one of its modules.
    In the last case they are when that module is complete.

    Args:
        top: Name of the package that holds them.
        *packages: Names of the packages.
        extras: Modules that are imported when they are used, to the packages
            which they need.
    """

    def __init__(self, top: str, *packages: str, extras: dict[str, str]):
        self._top, self._module = top, sys.modules[top]
        self._packages, self._extras = packages, extras
        # Keras and modules of this package, one for each import that runs.
        self._loading: list[str] = []
        self._is_complete = False

    def hooks(self) -> tuple[Callable, Callable]:
        """`__getattr__` and `__dir__` of the package that holds them."""
        if "keras" in sys.modules:
            self.complete()
        else:
            sys.meta_path.insert(0, self)
        return self._attribute, self._names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Where other finders find a module, with a look at its end."""
        if name != "keras" and not name.startswith(f"{self._top}."):
            return None
        others = [x for x in sys.meta_path if x is not self]
        finders = [x for x in others if hasattr(x, "find_spec")]
        specs = (x.find_spec(name, path, target) for x in finders)
        spec = next(filter(None, specs), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            load = loader.exec_module

            def watched(module: types.ModuleType) -> None:
                self._loading.append(name)
                try:
                    load(module)
                finally:
                    self._loading.pop()
                self.complete()

            loader.exec_module = watched
        return spec

    def complete(self) -> None:
        """Imports all packages, if Keras is there and none is half imported."""
        if self._is_complete or self._loading:
            return
        if "keras" not in sys.modules or "keras.saving" not in sys.modules:
            return
        self._is_complete = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        names = vars(self._module)
        for name in self._packages:
            package = importlib.import_module(f"{self._top}.{name}")
            for x in {*package.__all__} & {*vars(package)}:
                setattr(package, x, answering(getattr(package, x)))
            here = {*package.__all__} & {*names["__all__"]}
            names.update({x: getattr(package, x) for x in here})

    def _attribute(self, name: str) -> Any:
        # Python and tools ask every module for such names.
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._packages or name in self._extras:
            return importlib.import_module(f"{self._top}.{name}")
        try:
            importlib.import_module("keras")
        except ImportError:
            if name not in self._module.__all__:
                raise self._unknown(name) from None
            # Some have names that do without.
            for part in self._packages:
                with contextlib.suppress(ImportError):
                    package = importlib.import_module(f"{self._top}.{part}")
                    if name in package.__all__:
                        return getattr(package, name)
            raise
        self.complete()
        if name in vars(self._module):
            return vars(self._module)[name]
        raise self._unknown(name)

    def _unknown(self, name: str) -> AttributeError:
        """The error for a name that the top lacks, which says who has it."""
        text = f"module {self._top!r} has no attribute {name!r}"
        for package in self._packages:
            module = sys.modules.get(f"{self._top}.{package}")
            if name in getattr(module, "__all__", ()):
                text += f": it is `{self._top}.{package}.{name}`"
        return AttributeError(text)

    def _names(self) -> list[str]:
        there = [x for x in self._extras if find_spec(self._extras[x])]
        return sorted({*self._module.__all__, *self._packages, *there})
