"""The committed values of every entry are what today's statistics compute from its records."""

import json
import math

import pytest

from experiments.papers import entry
from experiments.papers.judge import blocks, verdicts
from experiments.papers.judge.values import Value
from experiments.papers.store import records
from tests.experiments.processes import ROOT

pytestmark = pytest.mark.papers

RESULTS = ROOT / "experiments" / "results" / "papers"
# Times are read from the files: on another machine, or a busy one, they are others.
TIMED = {"bsce_gra_cost", "recall_cost"}
# Its statistic trains networks on CIFAR-10, and keeps none of them.
TRAINED_THERE = {"mukhoti_early_confidence"}
COMMITTED = {path.stem for path in RESULTS.glob("*.json")}
# Rounding of float32 sums, whose order may change, and of deviations that are 0.
RELATIVE, ABSOLUTE = 1e-5, 1e-9


def test_what_is_not_computed_again_is_committed():
    assert entry.catalogue().keys() >= COMMITTED
    assert COMMITTED >= TIMED | TRAINED_THERE


@pytest.fixture(scope="module")
def reader():
    """The blocks of the committed records."""
    return blocks.Reader(RESULTS, entry.catalogue().values())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMITTED - TIMED - TRAINED_THERE))
def test_the_committed_values_are_those_of_the_records(name, reader):
    """All entries together take five minutes on two cores."""
    tested, file = entry.catalogue()[name], json.loads((RESULTS / f"{name}.json").read_text())
    trained = reader.attach(tested, records.read_all(RESULTS, tested))
    arguments = (trained,) if tested.runs else ()
    differences = []
    for claim, values in verdicts.values_of(tested, *arguments).items():
        committed = file["claims"][claim]["values"] | file["beside"]
        if not callable(tested.statistic):
            assert committed.keys() == values.keys(), claim
        for name_of_value, plain in committed.items():
            differences += compared(name_of_value, Value.of(plain), values.get(name_of_value))
    assert not differences, "\n".join(dict.fromkeys(differences))


def compared(name, committed, now):
    """Describe each field in which a value differs."""
    if now is None:
        return [f"{name}: it is not computed any more"]
    return [
        f"{name}, {field}: committed {before}, now {after}"
        for field, before, after in zip(Value._fields, committed, now, strict=True)
        if not is_near(before, after)
    ]


def is_near(before, after):
    """Compare two fields: numbers to their last digits, all others exactly."""
    if before is None or after is None or isinstance(before, str):
        return before == after
    return math.isclose(before, after, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
