"""Which of a run's best checkpoints is recommended: never a network at chance for its ECE."""

import re

from experiments.evaluation import best_checkpoints

COUNT = 1000  # the interval of the best error, .100, ends at .120
DIRECTIONS = {"error": "min", "nll": "min", "ece": "min"}


def log(*columns, names=("error", "nll", "ece")):
    """Return the rows of a log, an epoch of ten steps for each tuple of values."""
    keys = [f"validation_{name}" for name in names]
    return [
        {"step": 10 * k, "epoch": k, **dict(zip(keys, row, strict=True))}
        for k, row in enumerate(columns, start=1)
    ]


def best_of(rows, directions):
    """Return the best step, epoch and value by each metric."""
    best = {}
    for name, direction in directions.items():
        key = f"validation_{name}"
        row = (min if direction == "min" else max)(rows, key=lambda row: row[key])
        best[name] = {"step": row["step"], "epoch": row["epoch"], "value": row[key]}
    return best


AT_CHANCE_FIRST = log((0.9, 2.3, 0.02), (0.11, 0.4, 0.10), (0.10, 0.35, 0.12), (0.115, 0.5, 0.09))


def described(rows, directions=None):
    return best_checkpoints.describe(rows, best_of(rows, directions or DIRECTIONS), COUNT)


def test_a_network_at_chance_is_not_recommended_for_its_ece():
    lines = described(AT_CHANCE_FIRST)
    assert lines[0] == (
        "The best nll is 0.3500, of epoch 3, where the error is 0.1000; evaluate it with"
        " --checkpoint=best_nll."
    )
    (ece,) = [line for line in lines if line.startswith("The best ece")]
    assert "where the error is 0.9000" in ece
    assert "The best error, 0.1000 of epoch 3, is lower by more than noise." in ece
    assert "best_ece" not in ece


def test_a_checkpoint_that_is_asked_for_has_its_error_beside():
    assert best_checkpoints.remark(AT_CHANCE_FIRST, "best_ece", 10, COUNT) == (
        "best_ece is of epoch 1, with a validation error of 0.9000; the best error is 0.1000 of"
        " epoch 3, lower by more than noise: choose by the NLL (best_nll) or by refinement_nll,"
        " unless you want this epoch."
    )
    within = best_checkpoints.remark(AT_CHANCE_FIRST, "best_ece", 40, COUNT)
    assert "error of 0.1150" in within
    assert within.endswith("within noise.")
    assert "best_error" in best_checkpoints.remark(AT_CHANCE_FIRST, "best_nll", 10, COUNT)
    for name, step in (("latest", 40), ("40", 40), ("best_error", 30), ("best_ece", 77)):
        assert best_checkpoints.remark(AT_CHANCE_FIRST, name, step, COUNT) == ""
    unknown = best_checkpoints.remark(AT_CHANCE_FIRST, "best_ece", 10)
    assert re.search("0.9000; .* 0.1000 of epoch 3[.]$", unknown)
