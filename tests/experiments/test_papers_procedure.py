"""The procedure, against NumPy and SciPy that share no code with it."""

import dataclasses
import types

import numpy as np
import pytest
import scipy.special
import scipy.stats

from experiments.papers import entry
from experiments.papers.entry import Training
from experiments.papers.judge import (
    blocks,
    comparisons,
    estimates,
    pooling,
    procedure,
    rules,
    simulation,
    states,
)
from experiments.papers.judge.estimates import Predictions
from experiments.papers.judge.values import Value
from experiments.papers.store import records
from tests.experiments.test_papers import fabricate

pytestmark = pytest.mark.papers


def test_the_pooled_variance_is_that_within_losses():
    table = np.random.default_rng(0).normal(size=(20, 3)) + np.arange(20)[:, None]
    pooled = pooling.pooled(table)
    within = sum(np.sum((row - row.mean()) ** 2) for row in table)
    assert pooled.variance == pytest.approx(within / 40)
    assert pooled.freedom == 40


def test_homogeneity_agrees_with_bartlett_where_its_chi_square_is_exact_enough():
    draws = np.random.default_rng(1)
    for deviations in ([1, 1, 1, 1], [1, 1.2, 1.4, 1], [1, 1, 2, 1]):
        table = np.array(deviations)[:, None] * draws.normal(size=(4, 40))
        expected = scipy.stats.bartlett(*table).pvalue
        assert pooling.pooled(table).homogeneity == pytest.approx(expected, abs=0.02)


def test_homogeneity_rejects_losses_without_noise():
    table = np.array([[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]])
    assert pooling.pooled(table).homogeneity < 0.05


def test_losses_whose_roots_were_cut_are_left_out():
    """A negative squared error has the root 0. Three such roots would look like no noise."""
    table = np.random.default_rng(0).normal(5.0, 1.0, size=(6, 3))
    cut = np.array([[0.0, 0.0, 0.0], [0.0, 0.1, 0.2]])
    assert pooling.pooled(np.concatenate([table, cut])) == pooling.pooled(table)


def test_one_seed_has_no_pooled_variance():
    with pytest.raises(ValueError, match="1 seeds has no pooled variance"):
        pooling.pooled(np.zeros((3, 1)))


def test_the_variance_of_a_square_is_that_of_draws():
    square = np.random.default_rng(0).normal(3.0, 0.5, 400_000) ** 2
    assert pooling.variance_of_square(9.25, 0.25) == pytest.approx(np.var(square), rel=0.01)


def run(seed, *, sharpness=1.0, commit="abc", rows=500, block=None):
    """A fabricated run: its logits are too large by a factor that depends on the seed."""
    draws = np.random.default_rng([seed, round(100 * sharpness)])
    labels = np.arange(rows) % 4
    logits = np.random.default_rng(9).normal(size=(rows, 4)) + 1.5 * np.eye(4)[labels]
    logits = (sharpness + 0.2 * draws.normal()) * logits
    part = Predictions(logits.astype(np.float32), labels)
    return records.Trained(seed, part, part, [], {"commit": commit}, {}, block)


def block_of(**sharpnesses):
    """A block of fabricated losses with three seeds; the last loss is of another commit."""
    last = list(sharpnesses)[-1]
    runs = {
        name: [run(s, sharpness=x, commit="def" if name == last else "abc") for s in (1, 2, 3)]
        for name, x in sharpnesses.items()
    }
    block = blocks.Block("fabricated", runs)
    attached = {
        name: [dataclasses.replace(each, block=block) for each in seeds]
        for name, seeds in runs.items()
    }
    return block, attached


LOSSES = {"ce": 6.0, "fl": 5.0, "brier": 4.5, "ls": 4.0}


def test_a_comparison_adds_the_pooled_variance_of_seeds_to_that_of_examples():
    block, runs = block_of(**LOSSES)
    value = comparisons.ce2(runs["ce"], runs["fl"])
    errors = np.array(
        [[estimates.squared_error(r.test).value for r in seeds] for seeds in block.runs.values()]
    )
    roots = np.sqrt(np.maximum(errors, 0.0))
    within = roots - roots.mean(axis=1, keepdims=True)
    square = np.sum(within**2) / 8
    # root-CE2 has the variance s^2, so CE2 has 4 m^2 s^2 + 2 s^4, with m^2 + s^2 = its mean.
    of_seeds = sum(4 * (mean - square) * square + 2 * square**2 for mean in errors[:2].mean(1)) / 3
    assert value.value == pytest.approx(errors[0].mean() - errors[1].mean())
    assert value.deviation**2 - value.of_rows == pytest.approx(of_seeds)
    assert value.freedom == 8
    assert value.of_rows > 0
    assert "seeds pooled over 4 losses; runs of 2 commits" in value.note
    (name,) = block.used
    assert name == "fabricated, CE2 before T"
    assert block.used[name]["commits"] == 2


def test_the_seeds_of_another_statistic_are_pooled_as_it_is():
    block, runs = block_of(**LOSSES)
    value = comparisons.difference(runs["ce"], runs["ls"], estimates.gap)
    gaps = np.array([[estimates.gap(r.test).value for r in s] for s in block.runs.values()])
    square = np.var(gaps, axis=1, ddof=1).mean()
    assert value.value == pytest.approx(gaps[0].mean() - gaps[3].mean())
    assert value.deviation**2 - value.of_rows == pytest.approx(2 * square / 3)
    assert (value.freedom, block.used) == (8, {})


def test_only_records_with_logits_are_pooled_where_a_statistic_may_need_them(monkeypatch):
    """Of a loss whose record has columns alone, the squared error is known, and no temperature."""
    monkeypatch.setattr(procedure, "HOMOGENEOUS", 0.0)
    block, _ = block_of(**LOSSES)
    part = block.runs["ls"][0].test
    columns = estimates.Columns(part.confidence, part.right)
    seeds = [dataclasses.replace(each, test=columns) for each in block.runs["ls"]]
    mixed = blocks.Block("mixed", {**block.runs, "ls": seeds})
    runs = {
        name: [dataclasses.replace(each, block=mixed) for each in of_seeds]
        for name, of_seeds in mixed.runs.items()
    }
    notes = [
        comparisons.ce2(runs["ce"], runs["fl"]).note,
        comparisons.ce2(runs["ce"], runs["ls"]).note,
        comparisons.ce2(runs["ce"], runs["fl"], comparisons.after).note,
        comparisons.difference(runs["ce"], runs["fl"], estimates.gap).note,
        comparisons.difference(runs["ce"], runs["ls"], estimates.gap).note,
    ]
    counted = [int(note.partition("pooled over ")[2].split()[0]) for note in notes]
    assert counted == [4, 4, 3, 3, 4]


def test_a_block_with_unequal_variances_keeps_the_seeds_of_a_comparison(monkeypatch):
    _, runs = block_of(**LOSSES)
    monkeypatch.setattr(procedure, "HOMOGENEOUS", 1.1)
    value = comparisons.ce2(runs["ce"], runs["fl"])
    pairs = zip(runs["ce"], runs["fl"], strict=True)
    differences = [
        estimates.squared_error(a.test).value - estimates.squared_error(b.test).value
        for a, b in pairs
    ]
    assert value.freedom == 2
    assert value.deviation**2 - value.of_rows == pytest.approx(np.var(differences, ddof=1) / 3)
    assert "own seeds: p of homogeneity" in value.note


def test_runs_of_two_blocks_and_the_same_runs_in_two_phases_keep_their_seeds():
    _, runs = block_of(**LOSSES)
    _, others = block_of(**LOSSES)
    assert comparisons.ce2(runs["ce"], others["fl"]).freedom == 2
    assert comparisons.ce2(runs["ce"], runs["ce"], other_part=comparisons.after).freedom == 2


def test_validation_examples_count_after_the_temperature():
    _, runs = block_of(**LOSSES)
    after = comparisons.ce2(runs["ce"], runs["fl"], comparisons.after)
    resampled = [
        np.mean([blocks.resampled(r, estimates.squared_error) for r in runs[name]], axis=0)
        for name in ("ce", "fl")
    ]
    of_validation = np.var(resampled[0] - resampled[1], ddof=1)
    assert 0 < of_validation < after.of_rows
    without = dataclasses.replace(runs["ce"][0], block=None)
    alone = comparisons.ce2([without], [runs["fl"][0]], comparisons.after)
    assert alone.deviation**2 > np.var(
        blocks.resampled(without, estimates.squared_error)
        - blocks.resampled(runs["fl"][0], estimates.squared_error),
        ddof=1,
    )


def on_digits(loss, **changes):
    return Training(loss, config="digits", **changes)


def test_a_block_has_the_recorded_trainings_of_all_entries_with_its_config(tmp_path):
    names = ("cross_entropy", "brier", "mmce")
    entries = [entry.Entry({}, {}, runs={name: on_digits(name)}) for name in names]
    entries.append(entry.Entry({}, {}, runs={"a": on_digits("focal")}))  # without a record
    entries.append(entry.Entry({}, {}, runs={"b": on_digits("dual_focal", changes={"x": 1})}))
    entries.append(entry.Entry({}, {}, runs={"c": on_digits("flsd53", seeds=2)}))
    for number, tested in enumerate(entries[:3]):
        for seed in (1, 2, 3):
            (training,) = tested.runs.values()
            fabricate(tmp_path / "all", training, seed, wrong=0.1 + 0.2 * number)
        records.collect(tmp_path, tested, tmp_path / "all", None)
    block = blocks.Reader(tmp_path, entries).block_of(on_digits("cross_entropy"))
    assert list(block.runs) == ["cross_entropy", "brier", "mmce"]
    assert blocks.Reader(tmp_path, entries[:2]).block_of(on_digits("brier")) is None
    assert blocks.Reader(tmp_path, entries).block_of(on_digits("brier", seeds=1)) is None


def test_a_record_of_a_block_with_other_test_examples_is_refused(tmp_path):
    names = ("cross_entropy", "brier", "mmce")
    trainings = {name: on_digits(name) for name in names}
    for name, training in trainings.items():
        for seed in (1, 2, 3):
            rows = 190 if (name, seed) == ("mmce", 3) else 200
            fabricate(tmp_path / "all", training, seed, rows=rows)
    tested = entry.Entry({}, {}, runs=trainings)
    records.collect(tmp_path, tested, tmp_path / "all", None)
    reader = blocks.Reader(tmp_path, [tested])
    with pytest.raises(ValueError, match=r"mmce/3\.npz has 190 test examples, and .* has 200"):
        reader.block_of(trainings["brier"])


def test_counts_of_effects_have_the_p_value_of_partial_conjunction():
    """Two of three: twice the second p-value, for the hypothesis that at most one is positive."""
    rule = rules.several("a", "b", "c", holds=2, fails=0)
    values = {"a": Value(9.0, 1.0), "b": Value(2.5, 1.0), "c": Value(-1.0, 1.0)}
    judged = rule.judge(values)
    assert judged.state == "holds"
    assert judged.p == pytest.approx(2 * scipy.stats.norm.sf(2.5))
    negative = rule.judge({name: Value(-3.0, 1.0) for name in "abc"})
    assert negative.state == "does not hold"
    assert negative.p == pytest.approx(scipy.stats.norm.sf(3))
    one = rule.judge(values | {"b": Value(0.0, 1.0)})
    assert one.state == "undecided"
    assert rules.p_of_count(Value(15, rows=20)) == pytest.approx(
        scipy.stats.binomtest(15, 20, alternative="greater").pvalue
    )


def test_counts_of_seeds_have_the_p_value_of_their_means():
    rule = rules.with_p(rules.at_least("count", 3, 0), "fall")
    fall = Value(1.0, 0.5, 2)
    judged = rule.judge({"count": Value(3), "fall": fall})
    assert judged == ("holds", pytest.approx(scipy.stats.t.sf(2, 2)))
    assert rule.judge({"count": Value(0), "fall": fall}).p == pytest.approx(scipy.stats.t.cdf(2, 2))


def test_resampled_errors_are_those_of_the_repeated_rows():
    draws = np.random.default_rng(0)
    part = Predictions(draws.normal(size=(60, 4)) * 2, draws.integers(0, 4, 60))
    rows = draws.integers(0, 60, 60)
    weights = np.bincount(rows, minlength=60)[None].astype(np.float32)
    eces = estimates.resampled_eces(part, weights)[:, 0]
    for place, temperature in ((4, 0.5), (9, 1.0), (24, 2.5)):
        top = scipy.special.softmax(part.logits[rows] / temperature, axis=1).max(axis=1)
        hit = part.logits[rows].argmax(axis=1) == part.labels[rows]
        numbers = np.minimum((top * 15).astype(int), 14)
        sums = [abs(np.sum((top - hit)[numbers == b])) for b in range(15)]
        assert eces[place] == pytest.approx(sum(sums) / 60, abs=1e-6)


def test_the_size_is_kept_and_pooling_has_more_power():
    shares = simulation.simulate(simulation.EFFECTS, unequal=False, seed=5, times=150)
    own, together, _ = shares.values()
    assert together["a false rejection"] <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5
    assert together["power at 3 points"] > own["power at 3 points"] + 0.5


@pytest.mark.parametrize(
    ("scale", "judged", "values", "state"),
    [
        ("cpu", "holds", {}, "holds"),
        ("cpu", "does not hold", {"change": Value(-1.0, 0.1, 2)}, "contradicted here"),
        ("gpu", "does not hold", {"change": Value(-1.0, 0.1, 2)}, "outside the regime"),
        ("gpu", "undecided", {"change": Value(-1.0, 0.9, 2)}, "undecided"),
        ("table", "does not hold", {"lowest": Value(10, rows=11)}, "mostly"),
        ("table", "does not hold", {"lowest": Value(3, rows=11)}, "contradicted here"),
        ("cpu", None, {}, "not testable"),
    ],
)
def test_states(scale, judged, values, state):
    claim = types.SimpleNamespace(id="x", scale=scale)
    assert states.state_of(claim, judged, values) == state
