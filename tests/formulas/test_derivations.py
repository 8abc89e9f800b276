"""The page of derivations: its formulas, as it states them, are the code's."""

import functools
import pkgutil
import re

import numpy as np
import pytest
from cases import array
from keras import ops
from paths import ROOT
from scipy.integrate import quad
from scipy.stats import binom, norm

import keras_calib as kc
from keras_calib.formulas import risk_coverage as areas
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, equal_mass_error
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.metrics.gap_estimates import gap_estimate
from keras_calib.numerics import exact_sums
from keras_calib.numerics.softmax import top1

PAGE = (ROOT / "docs" / "derivations.md").read_text(encoding="utf-8")
# What a docstring says of the page.
LINES = re.compile(r"Derivation: docs/derivations\.md,([^.]*)\.")
TITLES = re.compile(r"'([^']+)'")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
NAMED = [
    (title, name)
    for title, text in SECTIONS.items()
    for name in re.findall(r"`(keras_calib\.[\w.]+)`", text)
]


@pytest.mark.parametrize(("title", "name"), NAMED)
def test_what_the_page_names_names_its_section(title, name):
    found = pkgutil.resolve_name(name)
    # A module says once what all of it is of.
    module = pkgutil.resolve_name(found.__module__)
    text = " ".join(f"{found.__doc__} {module.__doc__}".split())
    assert title in TITLES.findall(" ".join(LINES.findall(text)))


def test_each_section_that_a_module_names_names_the_module():
    for path in (ROOT / "keras_calib").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        lines = LINES.findall(path.read_text(encoding="utf-8"))
        for title in TITLES.findall(" ".join(lines)):
            assert f"`{module}." in SECTIONS[title], (module, title)


def groups(*sizes):
    """Ranked groups of (right, wrong), surest first."""
    right, wrong = np.array(sizes, "float64").T
    return areas.RankedGroups.of(right + wrong, wrong)


def harmonic(low, high):
    return sum(1 / i for i in range(int(low) + 1, int(high) + 1))


def test_terms_of_groups_are_those_of_the_page():
    ranked = groups((30, 1), (2, 3), (0, 2), (700, 40), (9, 9))
    mean = shifted = best = worst = area = 0.0
    for m, q, n, a, _ in np.transpose(ranked[:5]):
        g, r, n1 = m - q, q / m, n + 0.5
        term = sum((a + j * r) / (n + j) for j in range(1, int(m) + 1))
        mean += term
        x = m / n1
        rest = [1 / (24 * y**2) - 7 / (960 * y**4) for y in (n1 + m, n1)]
        shift = (a + r / 2) * np.log1p(x) + q * (1 - np.log1p(x) / x)
        shift += (a - n * r) * (rest[0] - rest[1])
        shifted += shift if n else term
        best += a * harmonic(n, n + g) + q
        best += (a - n - g) * harmonic(n + g, n + m)
        worst += q + (a - n) * harmonic(n, n + q)
        worst += (a + q) * harmonic(n + q, n + m)
        area += m * a + m * q / 2
    total, errors = ranked.mass.sum(), ranked.wrong.sum()
    right = total - errors
    optimum = (errors - right * harmonic(right, total)) / total
    close = functools.partial(pytest.approx, rel=1e-9)
    assert areas.aurc_of_groups(ranked) == close(mean / total)
    assert areas.aurc_of_groups(ranked) == close(shifted / total)
    assert areas.aurc_of_groups(ranked, "best") == close(best / total)
    assert areas.aurc_of_groups(ranked, "worst") == close(worst / total)
    excess = mean / total - optimum
    assert areas.eaurc_of_groups(ranked) == close(excess)
    share = excess / (right * harmonic(right, total) / total)
    assert areas.normalized_aurc_of_groups(ranked) == close(share)
    assert areas.augrc_of_groups(ranked) == close(area / total**2)
    r, auroc = errors / total, areas.failure_auroc_of_groups(ranked)
    related = r**2 / 2 + r * (1 - r) * (1 - auroc)
    assert areas.augrc_of_groups(ranked) == close(related)


def test_equal_mass_bins_share_the_groups_that_they_cut():
    mass, residual = np.array([3, 1, 4, 2]), np.array([0.9, -1.0, -0.4, 1.2])
    data = np.cumsum(mass) - mass, mass.astype(float), residual
    for whole, parts in ((True, 1), (False, 2)):
        each = np.repeat(residual / mass / parts, mass * parts)
        chunks = np.array_split(each, 4)
        expected = sum(abs(chunk.sum()) for chunk in chunks) / mass.sum()
        assert equal_mass_error(*data, 4, whole) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [None, 64.0])
def test_limbs_hold_the_sum_of_the_rounded_values(scale):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3, 999).astype("int32")
    values = rng.random(999).astype("float32") * (scale or 1.0)
    unit = 2.0**-24 if scale is None else scale * 2.0**-32
    factor = None if scale is None else ops.convert_to_tensor(scale)

    def limbs(rows):
        x, k = map(ops.convert_to_tensor, (values[rows], keys[rows]))
        return exact_sums.sum_by_key(x, k, 3, scale=factor)

    state = limbs(rng.permutation(999))
    rounded = [round(float(v) / unit) for v in values]
    for k, (low, middle, high) in enumerate(array(state).T.tolist()):
        exact = sum(rounded[i] for i in np.flatnonzero(keys == k))
        found = low + (middle << 24) + (high << 48)
        assert found == exact * round(2**30 * unit)
    first, second, third = map(limbs, np.split(np.arange(999), [70, 500]))
    merged = exact_sums.add(first, exact_sums.add(second, third))
    np.testing.assert_array_equal(merged, exact_sums.add(state, 0 * state))


def test_a_sum_that_left_its_range_stays_there():
    full = np.array([[0], [0], [2**27 - 1]], "int32")
    assert not exact_sums.is_saturated(full)
    for _ in range(3):
        full = array(exact_sums.add(*map(ops.convert_to_tensor, (full, full))))
    assert exact_sums.is_saturated(full)
    assert exact_sums.to_float(full) == 2.0**45


def test_cells_are_those_of_the_map():
    logits = np.random.default_rng(0).normal(0, 3, (500, 4)).astype("float32")
    metric = kc.AURC(from_logits=True)
    metric.update_state(np.arange(500) % 4, logits)
    others = [np.delete(z, z.argmax()) for z in logits.astype("float64")]
    t = logits.max(-1) - np.log([np.exp(z).sum() for z in others])
    found = top1(logits, from_logits=True)[1]
    np.testing.assert_allclose(found, t, rtol=1e-5, atol=1e-6)
    c = 1 / (1 + np.exp(-t))
    cell = np.floor(738 * np.arcsinh(t / 2)) + 2050 + np.ceil(15 * c) - 1
    cells = metric.summary.cells(array(metric.sums))
    mass, total = (
        np.bincount(cell.astype(int), weights=w, minlength=len(cells.mass))
        for w in (None, c)
    )
    same = cells.mass == mass
    assert np.sum(~same) <= 4
    error = np.abs(cells.confidence - total)[same]
    assert (error <= (0.44 / 6 / 738**2 + 1e-7) * mass[same]).all()


def test_ends_are_where_the_binomial_test_rejects():
    low, high = clopper_pearson(7, 60)
    assert binom.sf(6, 60, low) == pytest.approx(0.025, rel=1e-9)
    assert binom.cdf(7, 60, high) == pytest.approx(0.025, rel=1e-9)
    gap = gap_estimate(np.array([60.0]), np.array([7.0]), np.array([0.05]))
    ends = [gap.low + 0.05, gap.high + 0.05]
    np.testing.assert_allclose(ends, [low, high], atol=1e-6)
    assert (gap.low > 0) == (binom.sf(6, 60, 0.05) < 0.025)


def test_ends_of_a_binned_error_are_those_of_the_page():
    def folded(x):
        return x * (2 * norm.cdf(x) - 1) + 2 * norm.pdf(x)

    mean = quad(lambda u: abs(0.7 + u) * norm.pdf(u), -9, 9, points=[-0.7])[0]
    assert folded(0.7) == pytest.approx(mean, rel=1e-9)
    n, gaps = 1e6, np.array([4e-4, -3e-4, 1e-4, 6e-3])
    sums = [n, (0.5 + gaps) * n, 0.5 * n, gaps * n, n]
    sums = BinSums(*(np.broadcast_to(x, (4,)) for x in sums))
    # Of each gap, and of the noises their sum and the root of their squares.
    sd = total = np.sqrt(0.25 / n)
    root = sd / 2
    observed = abs(gaps).mean()
    low, high = error_interval(sums, norm="average")
    x, z = high / total, norm.isf(0.025)
    least = total * folded(x) - z * root * np.sqrt(1 + x**2 - folded(x) ** 2)
    assert least == pytest.approx(observed, rel=1e-3)
    region = 0.2 * 0.025
    z, reach = norm.isf((0.025 - region) / 2), norm.isf(region / 8)
    x = np.maximum(abs(gaps) / sd - reach, 0)
    bias = np.sum(sd / 4 * (folded(x) - x))
    end = max(observed - bias, abs(gaps.mean())) - z * root
    assert low == pytest.approx(end, rel=1e-3)
    low, high = error_interval(sums, norm="max")
    assert high == pytest.approx(0.506 - clopper_pearson(n / 2, n)[0], rel=1e-9)
    end = clopper_pearson(n / 2, n, level=0.975**0.25)[1]
    assert low == pytest.approx(0.506 - end, rel=1e-9)
