"""Certificates with changed facts, and a digest that fits."""

import json

from keras_calib.exporting.statement import digest_of, statement_path, text_of

# Values of every type.
BAD = (None, [], {}, "x", True, -1, 0.5, 10**400)


def changed(path, change):
    """Changes a certificate; its file, and the text before."""
    file = statement_path(path)
    text = file.read_text()
    facts = json.loads(text)
    change(facts)
    facts["digest"] = digest_of(facts)
    file.write_text(text_of(facts))
    return file, text


def leaves(facts, *at):
    """Paths to all numbers, texts and empty facts below a path."""
    return below(got(facts, at), *at)


def below(facts, *at):
    inner = {}
    if isinstance(facts, dict):
        inner = facts
    elif isinstance(facts, list):
        inner = dict(enumerate(facts))
    found = [x for key, one in inner.items() for x in below(one, *at, key)]
    return found or [at]


def put(facts, at, value):
    for key in at[:-1]:
        facts = facts[key]
    facts[at[-1]] = value


def got(facts, at):
    for key in at:
        facts = facts[key]
    return facts


def other(value):
    """A value of the same type that a forger may like better."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        swapped = {"ltt": "binomial", "betting": "hoeffding_bentkus"}
        swapped |= {"own": "log-odds", "log-odds": "own"}
        return swapped.get(value, value[::-1] + "1")
    if value is None:
        return 0.5
    return value + 1 if isinstance(value, int) else 0.9 * value + 1e-6


PARTS = ("kind", "guarantee", "selection", "costs", "data", "artefact")


def places(facts):
    """Paths to the facts that a check computes again."""
    parts = PARTS if facts["artefact"] else (*PARTS, "calibrator")
    found = [x for part in parts if part in facts for x in leaves(facts, part)]
    found.append(("score", "scale"))
    # The name of the format is no fact of the files, nor are the samples of a
    # calibrator and the name of a column facts of the log.
    unseen = {("artefact", "format"), ("data",), ("data", "group")}
    unseen.add(("calibrator", "num_samples"))
    return [at for at in found if at not in unseen]
