"""Claims that need no training: their statistics, and every verdict that their rules can give."""

import functools
import pathlib

import numpy as np
import pytest

from experiments.papers.entries import recounted
from experiments.papers.entries.adafocal import tables as adafocal_tables
from experiments.papers.entries.bsce_gra import cost as bsce_gra_cost
from experiments.papers.entries.bsce_gra import equivalences as bsce_gra_equivalences
from experiments.papers.entries.bsce_gra import tables as bsce_gra_tables
from experiments.papers.entries.bsce_gra import toy as bsce_gra_toy
from experiments.papers.entries.bsce_gra import weights as bsce_gra_weights
from experiments.papers.entries.mukhoti import early_confidence as mukhoti_early_confidence
from experiments.papers.entries.mukhoti import gradient_scale as mukhoti_gradient_scale
from experiments.papers.entries.mukhoti import linear_model as mukhoti_linear_model
from experiments.papers.entries.mukhoti import tables as mukhoti_tables
from experiments.papers.entry import catalogue, of_claims
from experiments.papers.judge import counting, limits, step_costs, verdicts
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED
from experiments.papers.judge.values import Value

pytestmark = pytest.mark.papers

RESULTS = pathlib.Path(__file__).parents[2] / "experiments" / "results" / "papers"
# Everything else holds. Each of these has a counterexample or a count in the entry.
NOT_HOLDING = {
    "mukhoti-mmce-ts-beats-ce-ts",  # 5 of 11
    "mukhoti-flsd-consistent-across-sets",  # 13.8 points above CE on ImageNet
    "mukhoti-tables-agree-with-themselves",  # CIFAR-100 ResNet-50 in F.1 and F.4
    "mukhoti-flsd53-policy-g",  # g(0.2, 3) = 1.13
    "adafocal-loss-switches-sign",  # an exponential is positive
    "adafocal-benefits-from-ts",  # 6 of 15
    "bsce-gra-ablation-same-phase",
    "bsce-gra-implicit-loss",  # the Brier weight's field has no potential
    "bsce-gra-dfl-weight-is-brier-ternary",  # (0.4, 0.3, 0.3) and (0.51, 0.49, 0)
    "bsce-gra-pearson-toy",
    "recall-no-benefit-beyond-true-positive",  # the gradient is (1 - R) times that of CE
}
UNDECIDED_CLAIMS = {
    "mukhoti-focal-beats-ce-count",
    "mukhoti-classwise-ece-flsd-best",
    "mukhoti-flsd-beats-other-focal",
    "bsce-gra-best-ece-table",
    "bsce-beats-scaled-focal-table",
    "bsce-gra-dual-focal-beats-focal",
}
# More than a second of arithmetic or of compilation.
SLOW = {
    "guo-ece-zero-iff-bins-match",
    "guo-perfect-calibration-needs-infinite-data",
    "guo-nll-minimised-by-truth",
    "guo-ts-max-entropy-solution",
    "mukhoti-brier-decomposes",
    "mukhoti-ce-minimised-only-at-infinite-weights",
    "mukhoti-focal-kl-entropy-bound",
    "mukhoti-focal-bound-one-component",
    "mukhoti-focal-not-proper",
    "mukhoti-prop1-gradient-ratio",
    "bsce-gra-unified-form",
    "bsce-gra-gradient-is-u-times-ce",
    "bsce-gra-scaling-strictly-aligned",
    "bsce-gra-implicit-loss",
    "bsce-gra-fl-weight-is-brier-binary",
    "bsce-gra-pearson-toy",
    "bsce-gra-no-extra-cost",
    "guo-platt-calibrates-binary",
    "recall-focal-can-cheat",
    "recall-no-benefit-beyond-true-positive",
    "recall-weights-not-normalised",
    "recall-many-classes-hard-to-estimate",
}
COMPUTED = {
    claim: tested_by
    for tested_by in catalogue().values()
    if not callable(tested_by.statistic) and not tested_by.runs
    for claim in tested_by.claims
}
# A wall clock on a busy machine must not decide a test.
MEASURED = {"bsce-gra-no-extra-cost"}


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(claim, marks=pytest.mark.slow if claim in SLOW else ())
        for claim in COMPUTED
        if claim not in MEASURED
    ],
)
def test_the_verdict_of_a_computation(claim):
    tested_by = COMPUTED[claim]
    values = tested_by.statistic[claim]()
    assert all(np.isfinite(value.value) for value in values.values())
    assert tested_by.claims[claim].judge(values).state == expected_state(claim)


def expected_state(claim):
    """Return the verdict that a claim has by the lists above."""
    if claim in UNDECIDED_CLAIMS:
        return UNDECIDED
    return FAILS if claim in NOT_HOLDING else HOLDS


def test_the_committed_verdicts_are_those_of_the_lists():
    standing = verdicts.read(RESULTS, of_claims())
    for claim in COMPUTED:
        if claim not in MEASURED:
            assert standing[claim].state == expected_state(claim), claim


def test_the_lists_of_this_file_name_claims():
    assert set(COMPUTED) >= NOT_HOLDING | UNDECIDED_CLAIMS
    assert not NOT_HOLDING & UNDECIDED_CLAIMS


# --------------------------------------------------------------------------------------------
# Every verdict of every rule, on fabricated values.


def counts(**values):
    """Make counts out of 11 rows."""
    return {name: Value(value, rows=11) for name, value in values.items()}


@pytest.mark.parametrize(
    ("rule", "values", "state"),
    [
        (counting.each_count("a", "b", holds=6, fails=3), counts(a=6, b=11), HOLDS),
        (counting.each_count("a", "b", holds=6, fails=3), counts(a=5, b=11), UNDECIDED),
        (counting.each_count("a", "b", holds=6, fails=3), counts(a=3, b=11), FAILS),
        (counting.all_counts("a", "b", holds=6, fails=5), counts(a=6, b=7), HOLDS),
        (counting.all_counts("a", "b", holds=6, fails=5), counts(a=5, b=7), UNDECIDED),
        (counting.all_counts("a", "b", holds=6, fails=5), counts(a=5, b=5), FAILS),
        (counting.one_count("a", "b", holds=6), counts(a=2, b=6), HOLDS),
        (counting.one_count("a", "b", holds=6), counts(a=5, b=5), FAILS),
        (counting.total_count("sum", ("a", "b"), 8, 4), counts(a=4, b=4), HOLDS),
        (counting.total_count("sum", ("a", "b"), 8, 4), counts(a=4, b=3), UNDECIDED),
        (counting.total_count("sum", ("a", "b"), 8, 4), counts(a=4, b=0), FAILS),
        (limits.at_most(1e-6, "a", "b"), {"a": Value(1e-7), "b": Value(-1.0)}, HOLDS),
        (limits.at_most(1e-6, "a", "b"), {"a": Value(1e-7), "b": Value(1e-5)}, FAILS),
        (limits.above(0, "a"), {"a": Value(1e-300)}, HOLDS),
        (limits.above(0, "a"), {"a": Value(0.0)}, FAILS),
    ],
)
def test_rules_of_counts_and_limits(rule, values, state):
    assert rule.judge(values).state == state


def changed(values, **new):
    """Replace some values by others; names are given by a part of them."""
    result = dict(values)
    for part, value in new.items():
        (name,) = (name for name in values if part.replace("_", " ") in name)
        result[name] = result[name]._replace(value=value)
    return result


def test_the_rule_of_consistency():
    rule, values = mukhoti_tables.CONSISTENT, mukhoti_tables.over_data_sets()
    best = changed(values, **{"Mukhoti's_rows": 11, "AdaFocal's_rows": 15, "worst_data_set": -1.0})
    assert rule.judge(best).state == HOLDS
    assert rule.judge(changed(values, worst_data_set=4.9)).state == UNDECIDED
    assert rule.judge(values).state == FAILS


def test_the_rules_of_rankings():
    values = mukhoti_tables.top_five()
    assert mukhoti_tables.RANKED.judge(values).state == HOLDS
    for change in ({"rank_on": 3}, {"lead_on_Tiny": -0.6}, {"highest_on": 3}):
        assert mukhoti_tables.RANKED.judge(changed(values, **change)).state == FAILS
    agreeing = {"a": Value(22, rows=22), "b": Value(44, rows=44)}
    assert mukhoti_tables.AGREE.judge(agreeing).state == HOLDS
    assert mukhoti_tables.AGREE.judge(agreeing | {"b": Value(43, rows=44)}).state == FAILS
    scores = {"Cross-Entropy": Value(26.3), "LS": Value(26.4), "Focal": Value(26.5)}
    assert mukhoti_tables.ASCENDS.judge(scores).state == HOLDS
    assert mukhoti_tables.ASCENDS.judge(scores | {"Focal": Value(26.4)}).state == FAILS


def test_the_rules_of_adafocal_and_of_the_ablation():
    rule, values = adafocal_tables.FAILS_THERE, adafocal_tables.excess_on_imagenet()
    assert rule.judge(values).state == HOLDS
    for name in values:
        wrong = Value(4.9 if name.startswith("FLSD-53") else 0.1)
        assert rule.judge(values | {name: wrong}).state == FAILS
    rule, values = bsce_gra_tables.SAME_PHASE, bsce_gra_tables.phases_of_ablation()
    assert rule.judge(values).state == FAILS
    assert rule.judge(values | {"BS-Loss equals BSCE": Value(1, rows=2)}).state == HOLDS


def test_the_rules_of_weights():
    aligned = {"FL, gradient weighting, K = 2": Value(1.0), "FL, loss weighting, K = 2": Value(0.9)}
    rule = bsce_gra_weights.ALIGNED
    assert rule.judge(aligned).state == HOLDS
    assert rule.judge(aligned | {"FL, gradient weighting, K = 2": Value(0.99)}).state == FAILS
    assert rule.judge(aligned | {"FL, loss weighting, K = 2": Value(1.0)}).state == FAILS
    implicit = {
        "largest deviation of the gradient, u of p_y": Value(1e-10),
        "asymmetry of the Jacobian, FL, K = 5": Value(1e-16),
    }
    rule = bsce_gra_weights.IMPLICIT
    assert rule.judge(implicit).state == HOLDS
    assert (
        rule.judge(implicit | {"asymmetry of the Jacobian, gBS, K = 5": Value(0.2)}).state == FAILS
    )


def test_the_rules_of_the_linear_model():
    rule = mukhoti_linear_model.MAGNIFIED
    for count, state in ((20, HOLDS), (15, UNDECIDED), (9, FAILS)):
        values = {
            "draws with the largest weight norm for CE": Value(20, rows=20),
            "draws with the largest mean logit for CE": Value(count, rows=20),
        }
        assert rule.judge(values).state == state
    rule = mukhoti_linear_model.SAME_REGIONS
    for same, apart, state in ((0.9, 0.1, HOLDS), (0.5, 0.5, UNDECIDED), (0.5, 0.6, FAILS)):
        values = {
            "share of draws with the same regions": Value(same),
            "share of draws with an angle above 10 degrees": Value(apart),
        }
        assert rule.judge(values).state == state


def test_the_rule_of_the_toy():
    def values(first, second):
        return {
            "r(gBS) - r(DFL), signed error, any": Value(first, 0.01, 19),
            "r(DFL) - r(FL), signed error, any": Value(second, 0.01, 19),
            "r(FL), signed error, any": Value(-1.0, 0.01, 19),
        }

    rule = bsce_gra_toy.ORDERED
    assert rule.judge(values(0.1, 0.2)).state == HOLDS
    assert rule.judge(values(0.1, 0.001)).state == UNDECIDED
    assert rule.judge(values(0.1, -0.1)).state == FAILS


def test_the_rule_of_the_cost():
    for ratio, deviation, state in (
        (1.0, 0.005, HOLDS),
        (1.0, 0.05, UNDECIDED),
        (1.06, 0.005, UNDECIDED),
        (1.2, 0.005, FAILS),
    ):
        values = {bsce_gra_cost.STEP: Value(ratio, deviation, 10)}
        assert step_costs.free(bsce_gra_cost.STEP).judge(values).state == state


# --------------------------------------------------------------------------------------------
# Parts of the statistics, against numbers by hand.


def test_below_is_strict_and_lists_the_exceptions():
    column = {"a": 1.0, "b": 2.0, "c": 3.0}
    others = {"x": {"a": 2.0, "b": 2.0, "c": 9.0}, "y": {"a": 5.0, "b": 5.0, "c": 1.5}}
    value = counting.below(column, others)
    assert (value.value, value.rows) == (1, 3)
    assert value.note == "not b: 2, x 2; c: 3, y 1.5"


def test_columns_are_named_by_table_method_and_phase():
    table = {phase: counting.columns("bsce-gra", "main", phase) for phase in ("pre", "post")}
    columns = functools.partial(recounted.columns, "bsce-gra", phase="pre")
    assert columns("main:BSCE") == {"BSCE": table["pre"]["BSCE"]}
    assert columns("main:FL+TS") == {"FL+TS": table["post"]["FL"]}
    assert columns("main:*+TS") == {f"{name}+TS": c for name, c in table["post"].items()}
    assert columns("other=main:BSCE") == {"other": table["pre"]["BSCE"]}


def test_the_row_that_is_printed_twice_is_found():
    values = mukhoti_tables.maximum_calibration_error()
    repeated = values["rows of F.11 that repeat F.10 in every column"]
    assert (repeated.value, repeated.note) == (1, "20 Newsgroups, Global Pooling CNN")


def test_weights_of_two_rows_by_hand():
    rows = np.array([[0.4, 0.3, 0.3], [0.51, 0.49, 0.0]])
    weights = bsce_gra_equivalences.weights(rows)
    np.testing.assert_allclose(weights["gBS"], [0.36 + 0.09 + 0.09, 2 * 0.49**2])
    np.testing.assert_allclose(weights["DFL"], [0.9**2, 0.98**2])
    np.testing.assert_allclose(weights["FL"], [0.6**2, 0.49**2])


def test_the_simplex_has_all_its_points():
    assert len(bsce_gra_equivalences.simplex(4, 5)) == 56  # 8 choose 3
    np.testing.assert_allclose(bsce_gra_equivalences.simplex(4, 5).sum(axis=-1), 1)


def test_the_threshold_at_gamma_one_is_one_over_e():
    assert mukhoti_gradient_scale.threshold(1.0) == pytest.approx(np.exp(-1))


@pytest.mark.slow
def test_confidences_of_the_first_steps(tiny_folder, monkeypatch):
    """With gamma 0 focal loss is cross-entropy, and larger gammas change the confidence."""
    monkeypatch.setenv("CALIB_JAX_DATA_DIR", str(tiny_folder))
    sizes = {"SEEDS": 2, "STEPS": 20, "EVERY": 5, "BATCH": 8, "MEASURED": 16}
    for name, size in sizes.items():
        monkeypatch.setattr(mukhoti_early_confidence, name, size)
    values = mukhoti_early_confidence.statistic()
    assert values["confidence(FL-3) - confidence(CE)"].rows == 16
    assert values["confidence(FL-3) - confidence(CE)"].value != 0
    monkeypatch.setattr(mukhoti_early_confidence, "GAMMAS", (0.0, 0.0))
    values = mukhoti_early_confidence.statistic()
    assert values["p_y(FL-0) - p_y(CE)"].value == 0
