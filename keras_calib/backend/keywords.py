"""Wrong keywords: the error names what was called, and what was meant."""

import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any

from keras_calib.backend.errors import type_error

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


# Names of what a method passes on to the next class.
_PASSED_ON = ("kwargs", "options")
_METHODS = ("__init__", "fit", "fit_on", "plot")
# What gets the keywords that `fit_on` does not take itself.
_AFTER_FIT_ON = ("fit", "predictions_of")
_TOP = __name__.partition(".")[0]


def answering(thing: Any) -> Any:
    """A public function or class that names wrong keywords.

    Functions, constructors, `fit`, `fit_on`, `plot` and class methods raise a
    TypeError that names what was called and, if it can, what was meant. It is
    done for all that packages export, and not at each definition.

    A class is changed in place. A function is replaced in its module too, so
    that pickle finds it.
    """
    if inspect.isclass(thing):
        if not issubclass(thing, tuple | dict | BaseException):
            for base in thing.__mro__:
                if base.__module__.startswith(_TOP):
                    _change_methods(base)
    elif isinstance(thing, types.FunctionType) and not _is_checked(thing):
        given, thing = thing, _checked(thing)
        setattr(sys.modules[thing.__module__], thing.__name__, thing)
        if "keras" in sys.modules:
            # What Keras saves by its name is found again as this one.
            saving = sys.modules["keras"].saving
            known = saving.get_custom_objects()
            if known.get(f"{_TOP}>{thing.__name__}") is given:
                saving.register_keras_serializable(_TOP)(thing)
    return thing


def _change_methods(cls: type) -> None:
    """Makes the methods that a class itself defines look at keywords."""
    for name, method in list(vars(cls).items()):
        function = getattr(method, "__func__", method)
        if isinstance(method, classmethod):
            wanted = not name.startswith("_") and name != "from_config"
        else:
            wanted = name in _METHODS and inspect.isfunction(function)
        if wanted and not _is_checked(function):
            checked = _checked(function, cls)
            if function is not method:
                checked = classmethod(checked)
            setattr(cls, name, checked)


def _is_checked(function: Any) -> bool:
    return getattr(function, "__globals__", None) is globals()


def _checked(function: Any, owner: type | None = None) -> Any:
    """A function, or that of a class, which looks at its keywords first."""

    @functools.cache
    def taken(cls: type | None) -> tuple[set[str], bool]:
        return _taken(function, owner, cls)

    @functools.cache
    def places() -> list[str]:
        found = inspect.signature(function).parameters.values()
        return [x.name for x in found if x.kind is x.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            cls = None
            if owner is not None:
                # Another class may take what its base passes on.
                cls = args[0] if isinstance(args[0], type) else type(args[0])
            if twice := [x for x in places()[: len(args)] if x in kwargs]:
                _refuse_twice(_called(function, cls), places(), twice)
            names, others = taken(cls)
            if not kwargs.keys() <= names:
                _check(_called(function, cls), kwargs, names, others)
        return function(*args, **kwargs)

    if function.__name__ == "__init__":
        # Keras looks for it behind no wrapper.
        vars(checked)["__signature__"] = inspect.signature(function)
    return checked


def _taken(
    function: Any, owner: type | None, cls: type | None
) -> tuple[set[str], bool]:
    """Names that a function takes by keyword, and whether it takes others.

    What a method passes on goes to the next class in the order of `cls`.
    """
    if owner is None or cls is None:
        names, rest = _parameters(function)
        return {*names}, rest is not None
    own: set[str] = set()
    of_all: set[str] = set()
    of_keras = False
    for base in cls.__mro__[cls.__mro__.index(owner) : -1]:
        if (method := vars(base).get(function.__name__)) is None:
            continue
        names, rest = _parameters(method)
        # A class gives its base what that requires.
        own |= {x for x in names if base is owner or not names[x]}
        of_all |= {*names, *_OF_KERAS.get(base.__name__, ())}
        # Keras passes keywords on in ways of its own.
        of_keras = of_keras or base.__module__.startswith("keras.")
        if not of_keras and rest not in _PASSED_ON:
            return own, base is owner and rest is not None
    if function.__name__ == "fit_on":
        after = [
            vars(base)[name]
            for base in cls.__mro__
            for name in _AFTER_FIT_ON
            if name in vars(base)
        ]
        return of_all.union(*(_parameters(x)[0] for x in after)), False
    return of_all, not of_keras


def _called(function: Any, cls: type | None) -> str:
    """How users call a function, or that of a class."""
    name = function.__name__
    if cls is None:
        return name
    return cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"


def _refuse_twice(name: str, places: list[str], twice: list[str]) -> None:
    """Raises for arguments that are given by their places and by name."""
    takes = ", ".join(x for x in places if x not in ("self", "cls"))
    raise type_error(
        f"`{twice[0]}` must be given once: `{name}({takes})` takes these in "
        "this order",
        arguments=twice,
    )


def _parameters(function: Any) -> tuple[dict[str, bool], str | None]:
    """Parameters, and whether each is required; and the name of all others."""
    names: dict[str, bool] = {}
    rest = None
    function = getattr(function, "__func__", function)
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            rest = each.name
            if typing.get_origin(each.annotation) is typing.Unpack:
                (options,) = typing.get_args(each.annotation)
                names |= dict.fromkeys(options.__annotations__, False)
                rest = each.name if each.name == "kwargs" else None
        elif each.kind is not each.VAR_POSITIONAL:
            names[each.name] = each.default is each.empty
    return {x: names[x] for x in names if x not in ("self", "cls")}, rest


def _check(
    name: str, given: Iterable[str], names: set[str], others: bool
) -> None:
    """Raises for keywords that a function does not take."""
    import difflib

    wrong = [x for x in given if x not in names]
    if others:
        # A display takes those of matplotlib, but not its own misspelt.
        near = functools.partial(difflib.get_close_matches, n=1, cutoff=0.75)
        is_plot = name.endswith(".plot")
        wrong = [x for x in wrong if is_plot and near(x, names)]
    if not wrong:
        return
    known = sorted(names)
    found = [x for x in _HABITS.get(wrong[0], ()) if x in known]
    if not found and wrong[0] not in _ADVICE:
        found = difflib.get_close_matches(wrong[0], known, 1)
    if found:
        advice = f"did you mean `{found[0]}`?"
    else:
        takes = ", ".join(f"`{x}`" for x in known)
        advice = _ADVICE.get(wrong[0], f"it takes {takes}")
    rule = f"`{wrong[0]}` must be an argument of `{name}`: {advice}"
    raise type_error(rule, arguments=wrong)
