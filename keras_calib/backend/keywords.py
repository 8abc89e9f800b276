"""Wrong keywords: the error names what was called, and what was meant."""

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from keras_calib.backend.errors import type_error

__all__ = ["answer_wrong_keywords", "answering"]

# What other libraries and older habits call an argument, and the names that
# it may have here. The first that the callable has is suggested.
_HABITS = {
    "adaptive": ("edges",),
    "alpha": ("delta", "smoothing", "level"),
    "bins": ("num_bins",),
    "class_weight": ("sample_weight",),
    "class_weights": ("sample_weight",),
    "confidence_level": ("level",),
    "dataset": ("data",),
    "gap": ("confidence_gap",),
    "ignore_index": ("ignore_class",),
    "label_names": ("class_names",),
    "labels_names": ("class_names",),
    "logits": ("outputs", "probs"),
    "mean_cost": ("max_cost",),
    "min_samples": ("min_count",),
    "min_size": ("min_count",),
    "n_bins": ("num_bins",),
    "n_bootstrap": ("num_draws",),
    "n_resamples": ("num_draws",),
    "names": ("class_names",),
    "num_bootstrap": ("num_draws",),
    "num_replicates": ("num_draws",),
    "num_samples": ("num_draws",),
    "outputs": ("logits", "probs"),
    "probs": ("outputs", "logits"),
    "random_state": ("seed",),
    "strength": ("penalty", "weight"),
    "targets": ("labels", "y_true"),
    "temperature": ("initial_temperature",),
    "weights": ("sample_weight",),
    "y_pred": ("outputs", "probs", "logits"),
    "y_prob": ("outputs", "probs", "logits", "y_pred"),
    "y_score": ("outputs", "probs", "logits", "y_pred"),
    "y_true": ("labels",),
}
# What to do where nothing here has that name.
_ADVICE = {
    "adaptive": "use `AECE`, whose bins have equal mass",
    "class_weight": "give it to `fit` of the Keras model",
    "norm": "use `ECE`, which has it",
    "num_classes": "leave it out, because the outputs tell it",
}
# Keras takes them by names that its signatures do not show.
_OF_KERAS = {
    "Layer": ("batch_shape", "input_dim", "input_shape"),
    "Model": ("inputs", "outputs"),
}


class _Any(frozenset):
    """The names of a function that takes any."""

    def issuperset(self, other: Any) -> bool:
        return True


class _Drawn(frozenset):
    """The names of a function that takes options of matplotlib beside them."""

    def issuperset(self, other: Any) -> bool:
        return not any(map(self.misspells, {*other} - self))

    def misspells(self, name: str) -> bool:
        import difflib

        return bool(difflib.get_close_matches(name, self, 1, cutoff=0.75))


_ANY, _NOTHING = _Any(), frozenset[str]()
# Names of what a function passes on to another.
_PASSED_ON = ("kwargs", "options")
_METHODS = ("fit", "fit_on", "plot")
# Methods of the same object that get what a method does not take itself.
_PASSES_ON = {"fit_on": ("fit", "predictions_of")}
_TOP = __name__.partition(".")[0]


def answer_wrong_keywords(package: str) -> None:
    """Make what a package exports name wrong keywords; called at its end.

    Functions, constructors, `fit`, `fit_on`, `plot` and class methods raise a
    TypeError that names what was called and, if it can, what was meant. It is
    done here, and not at each definition, because it holds for all of them.
    """
    module = sys.modules[package]
    for name in module.__all__:
        setattr(module, name, answering(getattr(module, name)))


def answering(thing: Any) -> Any:
    """A public function or class that names wrong keywords.

    A class is changed in place. A function is replaced in its module too, so
    that pickle finds it.
    """
    if inspect.isclass(thing):
        if not issubclass(thing, tuple | dict | BaseException):
            _change(thing, "__init__", thing.__init__)
            for base in thing.__mro__:
                if base.__module__.startswith(_TOP):
                    _change_methods(base)
    elif isinstance(thing, types.FunctionType) and not _is_checked(thing):
        thing = _checked(thing)
        setattr(sys.modules[thing.__module__], thing.__name__, thing)
    return thing


def _change_methods(cls: type) -> None:
    for name, method in list(vars(cls).items()):
        if isinstance(method, classmethod):
            if not name.startswith("_") and name != "from_config":
                _change(cls, name, method.__func__, classmethod)
        elif name in _METHODS:
            _change(cls, name, method)


def _change(
    cls: type, name: str, function: Any, kind: Callable = lambda x: x
) -> None:
    """Replace a function of a class, unless it is its own and checked."""
    if not isinstance(function, types.FunctionType):
        return
    if _is_checked(function):
        if name in vars(cls):
            return
        # That of a base.
        function = vars(function)["__wrapped__"]
    setattr(cls, name, kind(_checked(function, cls, name)))


def _is_checked(function: Any) -> bool:
    return getattr(function, "__globals__", None) is globals()


def _checked(function: Any, owner: type | None = None, name: str = "") -> Any:
    """A function, or that of a class, which looks at its keywords first."""
    # By the class that is called, as another may take what is passed on.
    known: dict[Any, frozenset[str]] = {}

    def check(cls: type | None, given: dict[str, Any]) -> None:
        if cls not in known:
            known[cls] = _known(function, owner, cls, name)
        if not known[cls].issuperset(given):
            raise _wrong(given, known[cls], _called(function, cls, name))

    @functools.wraps(function)
    def of_module(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not known.get(None, _NOTHING).issuperset(kwargs):
            check(None, kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def of_class(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            cls = self if isinstance(self, type) else type(self)
            if not known.get(cls, _NOTHING).issuperset(kwargs):
                check(cls, kwargs)
        return function(self, *args, **kwargs)

    if owner is None:
        return of_module
    if name == "__init__" and any(x.__name__ == "Layer" for x in owner.__mro__):
        # Keras looks for it behind no wrapper.
        vars(of_class)["__signature__"] = inspect.signature(function)
    return of_class


def _called(function: Any, cls: type | None, name: str) -> str:
    """What was called, in the words of the caller."""
    if cls is None:
        return function.__name__
    return cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"


def _known(
    function: Any, owner: type | None, cls: type | None, name: str
) -> frozenset[str]:
    """Names that a function takes by keyword.

    What it passes on goes to the next class in the order of `cls`.
    """
    if owner is None or cls is None:
        alone = _parameters([function])
        return _ANY if alone is None else alone
    bases = [x for x in cls.__mro__ if name in vars(x) and x is not object]
    checked = (x for x in bases if _is_checked(_function_of(vars(x)[name])))
    if next(checked) is not owner:
        # It was called by a class that checked what it got.
        return _ANY
    bases = bases[bases.index(owner) :]
    of_keras = [x for x in bases if x.__module__.startswith("keras.")]
    own = [vars(x)[name] for x in bases if x not in of_keras]
    known = _parameters(own)
    if known is _ANY and name == "plot":
        return _Drawn(_named(own[0])[0])
    if known is not None:
        return known
    # Keras passes keywords on in ways of its own.
    names = {x for c in of_keras for x in _OF_KERAS.get(c.__name__, ())}
    more = [vars(x)[name] for x in of_keras]
    more += [
        vars(x)[each]
        for each in _PASSES_ON.get(name, ())
        for x in cls.__mro__
        if each in vars(x) and x is not object
    ]
    if not more:
        return _ANY
    return frozenset(names.union(*(_named(x)[0] for x in (*own, *more))))


def _parameters(functions: list[Any]) -> frozenset[str] | None:
    """Names of parameters of functions, of which each calls the next.

    It is None if the last passes others on, and all if the first keeps them.
    """
    known: set[str] = set()
    for function in functions:
        names, rest = _named(function, function is functions[0])
        known |= names
        if rest is not None and rest not in _PASSED_ON:
            # What a base keeps under another name is not for its classes.
            return _ANY if function is functions[0] else frozenset(known)
        if rest is None:
            return frozenset(known)
    return None


def _named(function: Any, is_first: bool = True) -> tuple[set[str], str | None]:
    """Names of the parameters, and what holds all others, or None.

    A class gives its base what that needs, so the first has them all.
    """
    names: set[str] = set()
    rest = None
    parameters = inspect.signature(_function_of(function)).parameters
    for each in parameters.values():
        if each.kind is each.VAR_KEYWORD:
            rest = each.name
            if typing.get_origin(each.annotation) is typing.Unpack:
                (options,) = typing.get_args(each.annotation)
                names |= {*options.__annotations__}
                rest = each.name if each.name == "kwargs" else None
        elif each.kind is each.VAR_POSITIONAL:
            continue
        elif is_first or each.default is not each.empty:
            names.add(each.name)
    return names - {"self", "cls"}, rest


def _function_of(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _wrong(given: Iterable[str], known: frozenset[str], called: str) -> Any:
    """The error for keywords of which some are not known."""
    import difflib

    wrong = [x for x in given if not known.issuperset([x])]
    names = sorted(known)
    found = [x for x in _HABITS.get(wrong[0], ()) if x in known]
    if not found and wrong[0] not in _ADVICE:
        found = difflib.get_close_matches(wrong[0], names, 1)
    if found:
        advice = f"did you mean `{found[0]}`?"
    else:
        takes = ", ".join(f"`{x}`" for x in names)
        advice = _ADVICE.get(wrong[0], f"it takes {takes}")
    rule = f"`{wrong[0]}` must be an argument of `{called}`: {advice}"
    return type_error(rule, arguments=wrong)
