"""The README, and the pages of losses and results, are true today."""

import re
from pathlib import Path

import numpy as np
from scipy.special import log_softmax, softmax

from calib_jax import losses
from calib_jax.report.files import score_files

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOSSES = (ROOT / "calib_jax/losses/README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "experiments/documentation/results.md").read_text(encoding="utf-8")


def test_the_table_of_losses_names_objectives_and_nothing_else():
    table = LOSSES.partition("## The table\n")[2].partition("\n## ")[0]
    first_columns = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(first_columns))
    assert len(named) >= 30
    assert set(named) <= set(losses.catalogue())


def test_it_holds_one_test_command():
    (line,) = re.findall(r"^.*-m pytest$", README, re.MULTILINE)  # .ci/run reads the same line
    assert line.startswith("python3 -m venv .venv && ")


def test_the_results_of_the_wide_network_are_those_of_its_records():
    """Every number before and after T, by hand; T by the slope of the validation NLL."""
    names = {"cross-entropy": "cross_entropy", "AdaFocal": "adafocal"}
    names |= {"BSCE-GRA": "bsce_gra", "FLSD-53": "flsd53"}
    page = RESULTS.partition("## A wide ResNet-8")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.-]+ ± .*) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(names)
    runs = ROOT / "experiments/results/papers/gpu/runs/cifar10_resnet8"
    for name, shown in rows:
        seeds = []
        for path in sorted((runs / f"{names[name]}-wide-30epochs-bfloat16").glob("*.npz")):
            with np.load(path) as arrays:
                seeds.append(_values_of_a_network(arrays))
        assert len(seeds) == 3
        means, deviations = np.mean(seeds, axis=0), np.std(seeds, axis=0, ddof=1)
        cells = [
            [float(number) for number in cell.split(" ± ")]
            for cell in re.sub(r"(?<!\d)\.", "0.", shown).split(" | ")
        ]
        np.testing.assert_allclose(cells, np.transpose([means, deviations]), atol=0.006)


def _values_of_a_network(arrays):
    def of(part):
        labels = arrays[f"{part}_labels"].astype(int)
        return arrays[f"{part}_logits"].astype(float), labels, np.arange(len(labels))

    logits, labels, rows = of("validation")
    low, high = 0.1, 10.0  # the slope of the NLL in 1 / T changes its sign once
    for _ in range(50):
        middle = (low + high) / 2
        p = softmax(logits / middle, axis=1)
        slope = np.mean(np.sum(p * logits, axis=1) - logits[rows, labels])
        low, high = (middle, high) if slope > 0 else (low, middle)
    logits, labels, rows = of("test")
    hit = logits.argmax(axis=1) == labels

    def nll_ece_gap(z):
        confidence = softmax(z, axis=1).max(axis=1)
        bins = np.ceil(confidence * 15)
        gaps = [np.sum((confidence - hit)[bins == b]) for b in range(1, 16)]
        nll = -np.mean(log_softmax(z, axis=1)[rows, labels])
        return nll, 100 * np.sum(np.abs(gaps)) / len(hit), 100 * np.mean(confidence - hit)

    nll, ece, gap = nll_ece_gap(logits)
    return 100 * np.mean(~hit), nll, ece, gap, middle, *nll_ece_gap(logits / middle)[:2]


def test_its_first_output_is_that_of_today(monkeypatch):
    """Each line of the page begins a line of the output, in order; numbers to the digits shown."""
    (command, shown) = re.findall(
        r"^```\n\$ (calib-score .*?)\n(.*?)\.\.\.\n```$", README, re.M | re.S
    )[0]
    file, *options = command.split()[1:]
    named = dict(option.removeprefix("--").split("=") for option in options)
    monkeypatch.chdir(ROOT / "experiments/results/cifar10")
    scored = score_files(
        predictions=[file],
        calibrate=named["calibrate"],
        fit_on=[named["fit_on"]],
        metrics=named["metrics"].split(","),
    )
    number = re.compile(r"[-+]?\d*\.\d+")
    actual = iter(line.split() for line in str(scored).splitlines())
    for wanted in filter(None, (line.split() for line in shown.splitlines())):
        masked = [number.sub("#", word) for word in wanted]
        line = next(
            words[: len(wanted)]
            for words in actual
            if [number.sub("#", word) for word in words[: len(wanted)]] == masked
        )
        tolerance = 0.11 if "points" in wanted else 0.0011  # of another order of sums
        found = [[float(v) for v in number.findall(" ".join(x))] for x in (line, wanted)]
        np.testing.assert_allclose(*found, atol=tolerance)
