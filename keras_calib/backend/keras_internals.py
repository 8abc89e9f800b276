"""All that is used of Keras beyond its public interface.

Each use says why, in which version of Keras it was seen, and what happens
where a version has it no more. No other module may use such a part.
"""

import inspect

import keras

__all__ = ["metrics_beside", "set_direction"]


def set_direction(metric: keras.metrics.Metric, mode: str | None) -> None:
    """Tells Keras whether higher or lower values of a metric are better.

    `EarlyStopping` and `ModelCheckpoint` with `mode="auto"` ask for it, and
    raise where they do not find it. Keras has no public way to say it.

    Seen in Keras 3.15: `_direction`, "up" or "down". A version that
    does not ask for it ignores the attribute.

    Args:
        metric: The metric.
        mode: `"max"`, `"min"`, or None for a metric without a direction.
    """
    if mode is not None:
        metric._direction = {"max": "up", "min": "down"}[mode]


def metrics_beside(
    metric: keras.metrics.Metric,
) -> list[tuple[keras.metrics.Metric, str | None, bool]]:
    """All metrics of the `compile` whose update of a metric runs now.

    Keras tells a metric nothing of the others, so they are looked for among
    the callers. Look once, at the first update.

    Seen in Keras 3.15: `CompileMetrics` with the lists
    `_flat_metrics` and `_flat_weighted_metrics`. Empty where none calls, and
    in a version that has them no more.

    Args:
        metric: A metric whose `update_state` is on the stack.

    Returns:
        Of each, itself included: the metric, the output whose name Keras puts
        before the metric's, and whether the metric sees sample weights.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if type(caller).__name__ == "CompileMetrics":
            found = [
                (each, getattr(group, "output_name", None), weighted)
                for weighted, name in enumerate(
                    ("_flat_metrics", "_flat_weighted_metrics")
                )
                for group in getattr(caller, name, ())
                for each in getattr(group, "metrics", ())
            ]
            if any(each is metric for each, _, _ in found):
                return [(each, out, bool(w)) for each, out, w in found]
        frame = frame.f_back
    return []
