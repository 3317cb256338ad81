"""Flags in files, --flagfile: they mean what they mean on the command line."""

import json
import re
import sys

import pytest
from absl import flags

from experiments.running import cli, imports
from tests.experiments.processes import ROOT, finish

FILE = ROOT / "configs" / "digits.py"
OVERRIDES = (
    "--config.model.name=lenet5",
    "--config.num_epochs=7",
    "--config.optimizer.name=adam",
    "--config.optimizer.b2=0.98",  # a key that only the flag adds
    '--config.optimizer.groups=(("*/bias", {"weight_decay": 0.0}),)',
    "--config.metrics=error,nll,ece",
    "--config.schedule.milestones=(2, 3)",
    "--noconfig.augment",
    "--config.diagnose",
    "--config.loss.options.gamma=2.5",
)


def parsed(monkeypatch, *arguments, losses=""):
    """Parse as a binary does, and return the config."""
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    values = flags.FlagValues()
    flags.DEFINE_list("losses", [], "", flag_values=values)
    imports.define_config("", values, losses=losses)
    monkeypatch.setattr(flags, "FLAGS", values)
    cli._parsed(sys.argv)
    return cli.plain(values["config"].value)


@pytest.fixture
def write(tmp_path):
    def write(name, *lines):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return f"--flagfile={tmp_path / name}"

    return write


@pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")  # of ml_collections
def test_a_file_of_flags_gives_the_config_of_the_flags(monkeypatch, write):
    monkeypatch.chdir(ROOT)
    config = f"--config={FILE}:focal"
    expected = parsed(monkeypatch, config, *OVERRIDES)
    assert expected["model"]["name"] == "lenet5"
    assert (expected["num_epochs"], expected["augment"]) == (7, False)
    all_in_one = write("all", config, *OVERRIDES)
    overrides = write("overrides", *OVERRIDES)
    inner = write("inner", "# a comment", *OVERRIDES[4:])
    nested = write("nested", "// a comment", "", *OVERRIDES[:4], inner)
    for arguments in (
        [all_in_one],
        [config, overrides],
        [overrides, config],  # the file of common flags may come first
        [config, *nested.split("=")],
        [config, *OVERRIDES[:4], write("rest", *OVERRIDES[4:])],
    ):
        assert parsed(monkeypatch, *arguments) == expected, arguments
    # A sweep's config has the first of its losses.
    listed = (write("losses", "--losses=focal,brier"), f"--config={FILE}")
    swept = parsed(monkeypatch, *listed, overrides, losses="losses")
    assert swept == expected


@pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")  # of ml_collections
def test_the_later_flag_wins(monkeypatch, write):
    monkeypatch.chdir(ROOT)
    config, three = f"--config={FILE}", "--config.num_epochs=3"
    seven = write("seven", "--config.num_epochs=7", "--config.model.name=lenet5")
    assert parsed(monkeypatch, config, seven, three)["num_epochs"] == 3
    assert parsed(monkeypatch, config, three, seven)["num_epochs"] == 7
    outer = write("outer", three, seven, "--config.model.name=mlp")
    assert parsed(monkeypatch, config, outer)["num_epochs"] == 7
    assert parsed(monkeypatch, config, outer)["model"]["name"] == "mlp"
    assert parsed(monkeypatch, config, outer, "--config.model.name=resnet20")["model"]["options"]


def test_what_is_no_flag_file_is_one_sentence(monkeypatch, write, tmp_path, capsys):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe--quiet")
    for argument, message in (
        (f"--flagfile={tmp_path / 'nowhere'}", "error: Unable to open flagfile: .*nowhere"),
        ("--flagfile", "error: --flagfile with no argument"),
        (f"--flagfile={tmp_path / 'bytes'}", "error: .*can't decode byte"),
        (write("unknown", "--gamma=3"), "error: there is no flag --gamma"),
    ):
        with pytest.raises(SystemExit) as ended:
            parsed(monkeypatch, argument)
        assert ended.value.code == cli.REFUSED
        assert re.match(message, capsys.readouterr().err), argument


@pytest.mark.slow
def test_every_binary_takes_its_flags_from_a_file(write, tmp_path):
    run_folder, sweep_folder = tmp_path / "trained", tmp_path / "swept"
    options = ("--config.num_epochs=1", "--config.optimizer.name=adam", "--config.optimizer.b2=0.9")
    common = write("common", "--config=configs/digits.py", *options)
    finish("train", write("train", common, f"--workdir={run_folder}"))
    config = json.loads((run_folder / "config.json").read_text())
    assert (config["num_epochs"], config["optimizer"]["b2"]) == (1, 0.9)
    # The command in the record of the environment needs no file of flags.
    (start,) = (run_folder / "environment.jsonl").read_text().splitlines()
    assert "--config.optimizer.b2=0.9" in json.loads(start)["command"]
    evaluate = write("evaluate", f"--workdir={run_folder}", "--resamples=20", "--calibrate=")
    finish("evaluate", evaluate)
    sweep = write("sweep", "--losses=brier", f"--workdir={sweep_folder}", "--resamples=100")
    finish("sweep", sweep, common)
    config = json.loads((sweep_folder / "runs" / "brier" / "1" / "config.json").read_text())
    assert (config["optimizer"]["b2"], config["loss"]["name"]) == (0.9, "brier")
