"""Flags in files, --flagfile: they mean what they mean on the command line."""

import sys

import pytest
from absl import flags

from experiments.running import cli, imports
from tests.experiments.processes import ROOT

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
