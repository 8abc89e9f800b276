"""A model card in Markdown, from the certificate of an exported model."""

import html
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict, Unpack

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import path_of
from keras_calib.backend.late import imported
from keras_calib.exporting.statement import read_statement, statement_path
from keras_calib.inputs.checks import check_number
from keras_calib.inputs.options import filled

# Names of metrics, by those that an evaluation gives.
_TITLES = {
    "accuracy": "Accuracy",
    "ece": "Expected calibration error (ECE)",
    "aurc": "Area under the risk-coverage curve (AURC)",
    "nll": "Negative log-likelihood",
    "brier_score": "Brier score",
}


class HubMetadata(TypedDict, total=False):
    """What the Hub reads at the head of a card."""

    task: Annotated[str, "image-classification"]
    license: str | None
    tags: Annotated[Sequence[str], ()]


def model_card(
    path: Any,
    *,
    name: str,
    intended_use: str,
    dataset: str = "selection data",
    evaluation: Mapping[str, float] | None = None,
    evaluation_dataset: str | None = None,
    **options: Unpack[HubMetadata],
) -> str:
    """The Markdown of a model card, from the certificate of an export.

    Use it to publish a certified model, also on the Hugging Face Hub: the card
    begins with its metadata. The numbers of the guarantee are those of the
    certificate; `check_certificate` says whether that still holds.

    Args:
        path: The exported folder or file, with its certificate.
        name: Name of the model.
        intended_use: What the model is for and what it is not for, in a
            sentence or more of yours.
        dataset: Name of the data that chose the threshold.
        task: Task of the Hub, such as `"text-classification"`. Defaults to
            `"image-classification"`.
        evaluation: Metrics on other data by name, such as
            `{"ece": 0.012, "aurc": 0.004}`, or None.
        evaluation_dataset: Name of these data; needed with `evaluation`.
        license: Identifier of the licence, such as `"apache-2.0"`.
        tags: Further tags. Defaults to `()`.

    Returns:
        The card as text; write it to `README.md`.

    Raises:
        ValueError: If the certificate is missing or broken, or a text is
            empty.
        TypeError: If an argument is of the wrong kind.
        ImportError: If Jinja2 is missing.

    Example:

    >>> model_card("no/model", name="m", intended_use="A demonstration."
    ... )  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: There must be a certificate: ...

    Reference:
        Mitchell et al., Model Cards for Model Reporting, FAT* 2019,
        https://arxiv.org/abs/1810.03993
    """
    given = filled("model_card", options, HubMetadata)
    texts = {
        "name": name,
        "intended_use": intended_use,
        "dataset": dataset,
        "task": given.task,
    }
    if evaluation is not None:
        texts["evaluation_dataset"] = evaluation_dataset or ""
    for argument, text in texts.items():
        if not isinstance(text, str):
            raise type_error(f"`{argument}` must be a text", **{argument: text})
        if not text.strip():
            raise value_error(
                f"`{argument}` must not be empty", **{argument: text}
            )
    if isinstance(given.tags, str):
        raise type_error("`tags` must be a list of texts", tags=given.tags)
    for metric, value in (evaluation or {}).items():
        check_number(metric, value)
    facts = read_statement(statement_path(path_of(path)), check=True)
    if facts["artefact"] is None or facts["kind"] == "given":
        raise value_error(
            "The certificate must be of a model, and of a guarantee or of "
            "Chow's rule",
            kind=facts["kind"],
        )
    own = ["calibration", "selective-classification", "uncertainty"]
    made = environment("A model card", keep_trailing_newline=True)
    made.filters |= {"cell": _cell, "slug": _slug}
    return made.get_template("model_card.md.jinja").render(
        {
            **facts,
            **texts,
            "license": given.license,
            "tags": [*own, *(x for x in given.tags if x not in own)],
            "results": _results(facts, texts, evaluation),
            "costs": facts.get("costs"),
            "evaluation": evaluation or {},
            "titles": _TITLES,
        }
    )


def _results(
    facts: dict[str, Any],
    texts: dict[str, str],
    evaluation: Mapping[str, float] | None,
) -> dict[str, list[dict[str, Any]]]:
    """Metrics by the name of their data, as the Hub reads them."""
    chosen, data, found = facts["selection"], texts["dataset"], {}
    if facts["kind"] != "chow":
        found[data] = {
            "coverage": chosen["coverage"],
            "selective_risk": chosen["risk"],
        }
    if facts["kind"] == "costs":
        found[data]["selective_cost"] = chosen["accepted_cost"]
    if evaluation is not None:
        other = texts["evaluation_dataset"]
        found[other] = {**found.get(other, {}), **evaluation}
    return {
        data: [
            {"type": x, "value": float(value), "name": _TITLES.get(x, x)}
            for x, value in metrics.items()
        ]
        for data, metrics in found.items()
    }


def _cell(value: Any) -> str:
    """A name in one cell of a table."""
    text = " ".join(str(value).split())
    return html.escape(text).replace("|", "\\|")


def _slug(name: str) -> str:
    words = "".join(x if x.isalnum() else " " for x in name.lower()).split()
    return "-".join(words) or "data"


def environment(what: str, **options: Any) -> Any:
    """The templates that lie here; ImportError if Jinja2 is missing."""
    jinja2 = imported("jinja2", what, "report")
    return jinja2.Environment(
        loader=jinja2.PackageLoader("keras_calib", "reporting"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
