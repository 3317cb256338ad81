"""The pages of runs, from the files in their folders."""

import json
import re

import numpy as np
import pytest

from experiments.reports import run_report


def leave(folder, **measured):
    """Write what a training of two epochs leaves."""
    folder.mkdir(parents=True)
    names = {"data": {"name": "digits"}, "model": {"name": "mlp"}}
    (folder / "config.json").write_text(json.dumps(names | {"num_bins": 15}))
    rows = [{"epoch": e, "step": 4 * e, "validation_error": 0.5 / e, **measured} for e in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_seeds_of_other_metrics_are_in_one_table_of_those_that_all_have(tmp_path):
    folders = {1: leave(tmp_path / "seed_1", test_error=0.3), 2: leave(tmp_path / "seed_2")}
    assert "pictures/curves.png" in run_report.write_seeds(tmp_path, folders, "Two seeds.")
    page = (tmp_path / "report.md").read_text()
    assert "| seed | epoch | validation error |" in page
    assert "| mean ± sd |  | 0.2500 ± 0.0000 |" in page


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (1.5, r"is 1.56: FL-4.9 would bring it to 1. FL-3 would .* 1.17, and be 3 points under"),
        (1.0, "is 1.04: .* FL-3 would .* points under"),
        (0.7, r"is .73: inverse FL-0.\d would bring it to 1. FL-3 would .* points under"),
        (60.0, "is 62.30: even FL-20.0 would leave it at .*confident"),
    ],
)
def test_a_run_of_cross_entropy_names_the_focal_loss_that_would_calibrate_it(scale, said):
    random = np.random.default_rng(0)
    z = 2 * random.normal(size=(1000, 10))
    labels = (z + random.gumbel(size=z.shape)).argmax(axis=1)
    note = run_report.focal_note(scale * z, labels)
    assert re.search(said, note), note
    shuffled = np.random.default_rng(1).permutation(labels)
    assert "no better than chance" in run_report.focal_note(-z, shuffled)
