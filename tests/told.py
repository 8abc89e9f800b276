"""Arrays as `Predictions`, with options of these and of what takes them."""

import functools

import keras_calib as kc
from keras_calib.predictions.options import PredictionFacts

_FACTS = {*PredictionFacts.__annotations__, "from_logits"}


def told(labels, outputs, **options):
    """Predictions, of each model in a dict of outputs; and other options."""
    facts = {k: x for k, x in options.items() if k in _FACTS}
    others = {k: x for k, x in options.items() if k not in _FACTS}
    if isinstance(outputs, dict):
        each = {
            k: kc.Predictions(labels, x, **facts) for k, x in outputs.items()
        }
        return each, others
    return kc.Predictions(labels, outputs, **facts), others


def taking(function):
    """A function of arrays, from one that takes `Predictions`."""

    @functools.wraps(function, updated=())
    def called(labels, outputs, **options):
        given, others = told(labels, outputs, **options)
        return function(given, **others)

    return called
