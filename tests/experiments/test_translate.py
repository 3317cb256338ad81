"""Translating the lines of a text, the subwords of a run, and (slow) scores by sacrebleu."""

import functools
import math
import subprocess
import sys

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from calib_jax import data, models
from experiments.translation import bleu, networks
from tests.data import tiny
from tests.experiments.processes import ROOT, environment, finish
from tests.models.members import variables_of

NETWORK = {"width": 8, "depth": 1, "heads": 2, "mlp_width": 8, "places": 12, "dropout": 0.0}


@functools.cache
def translator():
    german, english = tiny.sentences(40)
    subwords = data.Subwords.of([*german, *english], size=60)
    network = models.transformer(num_classes=len(subwords), **NETWORK)
    variables = variables_of(network, network.example_inputs())
    variables = jax.tree.map(lambda leaf: 3 * leaf, variables)
    return networks.Translator(network, variables, subwords, ConfigDict(), "latest")


def translated(lines, **options):
    warnings = []
    given = {"beam": 2, "length": 7, "batch_size": 2, "warn": warnings.append} | options
    return translator().translate(lines, **given), warnings


def test_every_line_has_its_translation():
    lines = ["ein Hund rennt.", "", "Mann.", "Kater und Hund", "  "]
    translations, warnings = translated(lines)
    assert [bool(text) for text in translations] == [True, False, True, True, False]
    assert warnings == []
    for number in (0, 2, 3):  # the same alone, although it then shares its batch with none
        assert translated([lines[number]])[0] == [translations[number]]
    # A character that was never seen is an unknown subword.
    other = translated(["ein \u4e2d rennt."])[0]
    assert other == translated(["ein \u0429 rennt."])[0]


TRAIN = (
    "train",
    "--config=configs/multi30k_transformer_small.py",
    "--quiet",
    "--config.num_epochs=1",
    "--config.batch_size=10",
    "--config.data.options.words=60",
    *(f"--config.model.options.{name}={NETWORK[name]}" for name in ("width", "depth", "heads")),
    "--config.model.options.mlp_width=8",
    "--config.model.options.places=64",
)


def translate(folder, text, *options):
    return subprocess.run(
        [sys.executable, "-m", "experiments.translate", f"--workdir={folder}", *options],
        input=text,
        capture_output=True,
        cwd=ROOT,
        env=environment(),
        check=False,
    )


@pytest.mark.slow
def test_a_run_translates_without_its_data_set(tmp_path):
    tiny.multi30k(tmp_path / "sets")
    folder = tmp_path / "run"
    sets = f"--data_dir={tmp_path / 'sets'}"
    finish(*TRAIN, f"--workdir={folder}", sets)
    (tmp_path / "sets" / "multi30k").rename(tmp_path / "moved")
    ended = translate(folder, b"ein Hund.\n\nMann", "--beam=2", "--length=5")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.decode().split("\n")
    assert len(lines) == 4
    assert lines[1] == ""
    assert b"3 sentences in" in ended.stderr
    ended = translate(folder, b"Hund\n\xff\n")
    assert (ended.returncode, ended.stderr) == (2, b"error: line 2 of the input is not UTF-8.\n")
    (tmp_path / "moved").rename(tmp_path / "sets" / "multi30k")
    output = finish("evaluate", f"--workdir={folder}", sets, "--resamples=20")
    assert "predicted class=few" in output
    assert "in 7 clusters" in output
    # Other subwords are of another run, whether there are as many or not.
    subwords = data.Subwords.read(folder / "subwords.txt")
    data.Subwords((*subwords.pieces[:-1], "zz")).write(folder / "subwords.txt")
    output = finish("evaluate", f"--workdir={folder}", sets, code=2)
    assert "holds other subwords than the data set" in output
    data.Subwords(subwords.pieces[:-1]).write(folder / "subwords.txt")
    ended = translate(folder, b"Hund\n")
    assert (ended.returncode, b"has 59 subwords and the network 60" in ended.stderr) == (2, True)


def bleu_by_hand(translations, references):
    """Compute BLEU-4 of sentences whose words are separated by spaces."""
    matches, totals, length, true_length = np.zeros(4), np.zeros(4), 0, 0
    for text, reference in zip(translations, references, strict=True):
        words, true = text.split(), reference.split()
        length, true_length = length + len(words), true_length + len(true)
        for n in range(1, 5):
            grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
            others = [tuple(true[i : i + n]) for i in range(len(true) - n + 1)]
            totals[n - 1] += len(grams)
            matches[n - 1] += sum(min(grams.count(g), others.count(g)) for g in set(grams))
    brevity = min(1.0, math.exp(1 - true_length / length))
    return 100 * brevity * math.exp(np.mean(np.log(matches / totals)))


def changed(draw, references, share):
    """Draw another word in place of a share of the words, and leave out some last words."""
    texts = []
    for text in references:
        words = text.split()
        kept = draw.random(len(words)) > share
        words = np.where(kept, words, draw.choice(list("abcdef"), size=len(words)))
        texts.append(" ".join(words[: len(words) - int(draw.integers(2))]))
    return texts


@pytest.mark.slow
def test_bleu_is_that_of_its_formula():
    pytest.importorskip("sacrebleu")
    draw = np.random.default_rng(0)
    references = [" ".join(draw.choice(list("abcdef"), size=12)) for _ in range(60)]
    shares = {"good": 0.2, "bad": 0.5, "same": 0.2}
    systems = {name: changed(draw, references, share) for name, share in shares.items()}
    systems["copy"] = systems["good"]
    by_metric, signatures = bleu.qualities(systems, references, num_resamples=200)
    for name, translations in systems.items():
        expected = bleu_by_hand(translations, references)
        quality = by_metric["BLEU"][name]
        np.testing.assert_allclose(quality.score, expected, rtol=1e-9)
        assert quality.low < expected < quality.high
    assert by_metric["BLEU"]["good"].p_value is None
    for of_metric in by_metric.values():
        assert of_metric["bad"].p_value < 0.01 < 0.05 < of_metric["same"].p_value
        assert of_metric["bad"].score < of_metric["good"].score
        assert of_metric["copy"].p_value == 1
    assert "tok:13a" in signatures["BLEU"]


@pytest.mark.slow
def test_a_tenth_of_equally_good_systems_has_a_p_value_below_a_tenth():
    pytest.importorskip("sacrebleu")
    values = []
    for seed in range(150):
        draw = np.random.default_rng(seed)
        references = [" ".join(draw.choice(list("abcdef"), size=12)) for _ in range(50)]
        systems = {name: changed(draw, references, 0.3) for name in ("one", "other")}
        by_metric, _ = bleu.qualities(systems, references, num_resamples=100)
        values.append([of_metric["other"].p_value for of_metric in by_metric.values()])
    shares = (np.array(values) < 0.1).mean(axis=0)
    assert (np.abs(shares - 0.1) < 3 * np.sqrt(0.1 * 0.9 / 150)).all()  # .027 to .173
