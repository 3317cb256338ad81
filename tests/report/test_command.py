"""The command that scores files, with real files."""

import inspect
import io
import json
import os
import pathlib
import runpy
import shlex
import sys

import numpy as np
import pytest

import calib_jax
from calib_jax import report
from calib_jax.report import command
from calib_jax.report.command import score_files

from . import sample


def contents(seed=0):
    """Return logits and labels as a file holds them."""
    return dict(zip(("logits", "labels"), sample(3, seed, 120), strict=True))


def scored(*arguments):
    """Return the report of a command line, in this process."""
    given = [*map(str, arguments), "--metrics=accuracy,nll", "--resamples=20"]
    options = command._parsed(given)
    own = ("out", "markdown", "notes", "cache")
    return score_files(**{name: each for name, each in options.items() if name not in own})


def test_from_files_to_a_table_and_a_folder(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "test.npz", **contents(), groups=np.arange(120) % 2)
    np.savez(tmp_path / "val.npz", **contents(seed=1))
    given = [
        "--predictions=~/test.npz",
        "--calibrate=temperature",
        f"--fit_on={tmp_path / 'val.npz'}",
        f"--compare={tmp_path / 'test.npz'}",
        "--metrics=accuracy,nll",
        "--resamples=20",
        "--out=~/out",
        "--cache=",
    ]
    monkeypatch.setenv("HOME", str(tmp_path))  # no shell expands these ~
    monkeypatch.setattr(sys, "argv", ["score", *given])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("experiments.score", run_name="__main__")
    printed = capsys.readouterr().out
    for part in ("120 examples in 3 classes", "temperature - ", "group"):
        assert part in printed
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"report.csv", "reliability_temperature.png", "reliability_other.png"}
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "--metrics=accuracy,nll" in written["settings"]["command"]
    # The same predictions: no difference, and no accident.
    again = f"{tmp_path / 'test.npz'} (again)"
    (same,) = (c for c in written["changes"] if (c["metric"], c["after"]) == ("nll", again))
    assert (same["value"], same["p_value"]) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("", "there is nothing to score: give a file of predictions"),
        ("none.npz", "there is no file"),
        ("run.npz --metrics=eec", "did you mean 'ece'?"),
        ("run.npz --interval=bca", "interval must be one of 'valid'"),
        ("run.npz --resamples=1", "--resamples must be at least 20 at this level, got 1."),
        ("run.npz --resamples=150 --level=.99", "--resamples must be at least 200 at this level"),
        ("run.npz --cross_fit=5", "cross_fit needs calibrate"),
        ("run.npz --out=run.npz", "is a file: give a folder for the report."),
        ("''", "the name of a file is empty"),
        ("run.npz --floor=.1", "--floor is for --probabilities: leave it out"),
        ("run.npz --cross_fit=5 --calibrate=histogram:num_bin=5", "has no option 'num_bin'"),
        (
            "report.csv --resamples=20 --metrics=ece,accuracy --out=.",
            "is a file that no report wrote",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path, monkeypatch, capsys, arguments, output
):
    monkeypatch.chdir(tmp_path)
    np.savez("run.npz", **contents())
    pathlib.Path("report.csv").write_text("confidence,correct\n.5,1\n.6,0\n")
    assert command.main([*shlex.split(arguments), "--cache="]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert output in sentence
    assert pathlib.Path("report.csv").read_text().startswith("confidence")


def test_the_options_are_those_of_the_function():
    options = command._parsed([])
    known = {**inspect.signature(report.score).parameters}
    known |= inspect.signature(score_files).parameters
    own = {"out": None, "markdown": False, "notes": False, "cache": None}
    assert {name: options[name] for name in options.keys() - known.keys()} == own
    for name in options.keys() & known.keys():
        given = options[name]
        assert (tuple(given) if isinstance(given, list) else given) == known[name].default, name


def test_the_console_script_prints_a_section_for_a_model_card(tmp_path, capsys):
    """In this process: the next call reads the programs that JAX has already compiled."""
    (tmp_path / "run.csv").write_text("label,cat,dog\ndog,0.5,2.5\ncat,1.5,-1\ncat,2,1\n")
    small = ["--metrics=accuracy", "--resamples=20", "--cache="]
    assert command.main([str(tmp_path / "run.csv"), *small, "--markdown"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "## Calibration"
    assert lines[2].startswith("P(dog): 40.9 % stated, 33.3 % observed")
    assert "| metrics | as given |" in lines[6]
    assert "| accuracy | 1.0000 [0.3684, 1.0000] |" in lines[8]  # .05 ** (1 / 3)
    assert f"{tmp_path / 'run.csv'}: the classes are cat = 0, dog = 1." in printed.out
    assert lines[-1].startswith("Measured by calib_jax ")
    assert lines[-1].endswith("--markdown`.")
    assert printed.err.endswith(" s; compiled programs are not kept.\n")
    assert command.main([str(tmp_path / "none.csv"), *small]) == 2
    assert capsys.readouterr().err == f"error: there is no file {tmp_path / 'none.csv'}.\n"
    for given, message in (
        ("--bin=3", "error: there is no option --bin; did you mean 'bins'?"),
        ("--bins=x", "error: argument --bins: invalid int value: 'x'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            command.main([given])
        assert message in capsys.readouterr().err.splitlines()[1]
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert "--no-per-group" in shown
    assert "calibrators: bbq, beta," in shown
    assert "brier_decomposition" not in shown  # several numbers are no row
    with pytest.raises(SystemExit, match="0"):
        command.main(["--version"])
    assert capsys.readouterr().out == f"calib-score {calib_jax.__version__}\n"


def test_no_calibrator_is_fitted_on_what_is_scored(tmp_path):
    data = contents()
    file = tmp_path / "run.npz"
    np.savez(file, **data)
    calibrated = (f"--predictions={file}", "--calibrate=temperature")
    printed = np.round(data["logits"], 6)
    np.savez(tmp_path / "printed.npz", logits=printed, labels=data["labels"])
    for name in ("run.npz", "printed.npz"):
        with pytest.raises(ValueError, match=f"120 of 120 scored .* of .*{name}"):
            scored(*calibrated, f"--fit_on={tmp_path / name}")
    # Of an average each part counts.
    np.savez(tmp_path / "other.npz", logits=data["logits"][:, ::-1], labels=data["labels"])
    both = (f"--predictions={tmp_path / 'other.npz'}", "--average")
    with pytest.raises(ValueError, match="120 of 120 scored examples"):
        scored(*calibrated, *both, f"--fit_on={file}")
    np.savez(tmp_path / "val.npz", **contents(seed=1))
    result = scored(*calibrated, f"--fit_on={tmp_path / 'val.npz'}")
    assert result.calibrator["fitted_on"] == "120 other examples"


@pytest.mark.parametrize("option", [[], ["--average"]])
@pytest.mark.parametrize("column", ["weight", "group", "cluster"])
def test_columns_that_differ_between_files_are_refused(tmp_path, column, option):
    values = np.repeat([1, 2, 3], 40)
    of_files = {"a": {f"{column}s": values}, "b": {}, "c": {f"{column}s": values[::-1]}}
    of_files["as text"] = {f"{column}s": values if column == "weight" else values.astype(str)}
    files = [tmp_path / f"{name}.npz" for name in of_files]
    for file, columns in zip(files, of_files.values(), strict=True):
        np.savez(file, **contents(), **columns)
    for pair in (files[:2], files[1:3], files[:3:2]):
        with pytest.raises(ValueError, match=f"differ in the {column} of the same example"):
            scored(*pair, *option)
    assert scored(files[0], files[3], *option).settings


def test_labels_of_one_text_are_a_cluster(tmp_path):
    data = contents()
    shaped = {"logits": data["logits"].reshape(30, 4, 3)}
    shaped["labels"] = data["labels"].reshape(30, 4)
    own = np.broadcast_to(np.arange(4) % 2, (30, 4))
    np.savez(tmp_path / "texts.npz", **shaped)
    np.savez(tmp_path / "own.npz", **shaped, clusters=own)
    texts = scored(tmp_path / "texts.npz")
    assert texts.settings["clusters"] == 30
    assert " clusters (" not in str(texts)  # 30 are enough
    assert any("--clusters= resamples single labels" in note for note in texts.notes)
    assert scored(tmp_path / "texts.npz", "--clusters=").settings["clusters"] is None
    assert scored(tmp_path / "own.npz").settings["clusters"] == 2
    options = {"metrics": ["accuracy"], "num_resamples": 20}
    (row,) = report.score(
        data["logits"], data["labels"], clusters=np.repeat(np.arange(30), 4), **options
    ).rows
    assert (row.low, row.high) == pytest.approx((texts.rows[0].low, texts.rows[0].high))


def test_an_average_of_probabilities(tmp_path):
    first = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    second = np.array([[0.4, 0.6], [0.1, 0.9], [0.8, 0.2]])
    for name, p in (("a", first), ("b", second)):
        np.savez(tmp_path / f"{name}.npz", probabilities=p, labels=[0, 1, 0])
    files = (f"--predictions={tmp_path / 'a.npz'}", f"--predictions={tmp_path / 'b.npz'}")
    result = scored(*files, "--average", "--probabilities")
    assert not any("probability 0" in note for note in result.notes)  # none has it in both
    assert result.value("nll") == pytest.approx(-np.log([0.2, 0.7, 0.9]).mean(), rel=1e-5)
    # Zeros of rounded probabilities are half a step before they are averaged.
    for file, second in zip(files, (0.25, 0.26), strict=True):
        p = np.tile([[0.0, 1.0], [second, 1 - second], [1.0, 0.0]], (10, 1))
        np.savez(file.partition("=")[2], probabilities=p, labels=[0, 1, 0] * 10)
    for option, floor in (((), 0.005), (("--floor=0.05",), 0.05)):
        result = scored(*files, "--average", *option)
        expected = -np.log([floor / (1 + floor), 0.745, 1 / (1 + floor)]).mean()
        assert result.value("nll") == pytest.approx(expected, rel=1e-5)
        assert f"0 is read as {floor}" in result.notes[0]


@pytest.mark.parametrize("of_errors", [False, True])
def test_a_closed_pipe_ends_the_command_quietly(tmp_path, monkeypatch, of_errors):
    """In this process: what is left of the output has to be flushed without an error."""
    np.savez(tmp_path / "run.npz", **contents())
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as output, open(os.dup(writing), "wb", buffering=0) as errors:
        monkeypatch.setattr(sys, "stdout", output)
        if of_errors:
            monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(errors, write_through=True))
        given = [str(tmp_path / "run.npz"), "--metrics=accuracy", "--resamples=20", "--cache="]
        assert command.main(given) == 141


def test_an_interrupt_ends_the_command_quietly(monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "score_files", interrupted)
    assert command.main(["run.npz", "--cache="]) == 130
    assert capsys.readouterr() == ("", "interrupted.\n")
