"""Commands: how they end, flags in files, the list of data sets, the lines of an issue."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tarfile

import jax
import pytest
from absl import flags

from calib_jax import data
from experiments.running import cli, environment, imports
from tests.data import tiny
from tests.experiments.processes import ROOT, finish, refused


def test_a_ctrl_c_during_the_imports_is_one_line(tmp_path):
    """The binary imports a module that waits; the shell's own Ctrl-C reaches it there."""
    (tmp_path / "jax.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(60)\n")
    # A process in the background of a shell ignores SIGINT, and so do its children.
    as_in_a_shell = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "experiments.evaluate"])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", as_in_a_shell],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "error: interrupted.\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
def test_a_full_standard_output_is_one_sentence(tmp_path):
    arguments = ["--config=configs/digits.py", "--config.num_epochs=1", f"--workdir={tmp_path}"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "experiments.train", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    message = "error: standard output cannot be written to: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (1, message)


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
    monkeypatch.setenv("HOME", str(FILE.parent))  # no shell expands this ~
    assert parsed(monkeypatch, "--config=~/digits.py:focal", overrides) == expected


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch):
    for variable in ("CALIB_JAX_DATA_DIR", "TFDS_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)


def test_the_list_tells_what_is_there_and_how_to_get_the_rest(tmp_path):
    folder = tmp_path / "my sets"
    tiny.cifar10(folder / "tfds")
    tiny.cifar10_binary(folder)
    tiny.svhn(folder)
    (folder / "tiny_imagenet").mkdir()
    (folder / "tiny_imagenet" / "tiny-imagenet-200.zip").touch()
    some = {"test": tiny.examples("test")}
    tiny.cifar10_c(folder)
    tiny.tfds_images(folder, "svhn_cropped", some, features=("image", "label"))
    output = finish("data", "--list", f"--data_dir={folder}")
    assert f"Looked for in {folder}, the folder of data_dir." in output
    lines = output.splitlines()
    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    place = f"'{folder}/tiny_imagenet/tiny-imagenet-200.zip'"
    assert f"  curl -fL --create-dirs -o {place} {url}" in lines
    for name, where in {
        "cifar10": "tfds/cifar10/3.0.2, cifar-10-batches-bin",
        "cifar100": "missing",
        "tiny_imagenet": "downloaded, to be unpacked by --prepare",
        "digits": "needs no files",
        "own_images": "named by its options",
    }.items():
        row = next(line for line in lines if line.split()[:1] == [name])
        assert re.split(r"\s{2,}", row)[1] == where


def test_a_downloaded_archive_is_prepared_if_it_is_the_published_one(tmp_path):
    made = tiny.cifar10_c(tmp_path / "made")
    archive = tmp_path / "cifar10_c" / "CIFAR-10-C.tar"
    prepare = ("data", "--prepare=cifar10_c", f"--data_dir={tmp_path}")
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(made, "CIFAR-10-C")
    output = finish(*prepare, code=2)
    size = archive.stat().st_size
    assert f"it has {size:,} bytes and not 2,918,471,680; download it again" in output
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    output = finish(*prepare, "--unchecked")
    assert output.splitlines()[0] == f"unpacked: {archive.parent / 'CIFAR-10-C'}"
    assert len(data.named("cifar10_c", data_dir=str(tmp_path)).test) == 20
    assert "is there already: nothing to do" in finish(*prepare)


def test_the_binary_shows_an_example_of_each_part():
    output = finish("data", "--show=digits", "--example=400")
    lines = output.splitlines()
    label = data.digits().train.labels[400]
    assert lines[lines.index("train, example 400 of 500") + 3] == f"  label     {label}"
    assert "validation: has 297 examples, numbered from 0" in lines
    output = refused("data", "--show=digit")
    assert output == "error: no data set is called 'digit'; did you mean 'digits'?\n"
    output = refused("data", "--show=digits", "--example=1000")
    assert output == "error: --example=1000 is in no part of digits: give at most 999.\n"


def test_every_required_package_and_device_has_a_line():
    lines = environment.lines()
    for name in ("jax", "jaxlib", "numpy", "flax"):
        assert f"{name} {importlib.metadata.version(name)}" in lines
    assert f"devices: {jax.device_count()} x cpu cpu" in lines
    assert any(line.startswith("XLA_FLAGS=") for line in lines)  # set by tests/conftest.py


def test_missing_and_broken_packages_are_named(monkeypatch):
    versions = {"jax": "0.9.12", "numpy": "2.10.0"}
    monkeypatch.setattr(environment, "version", lambda name: versions.get(name, "not installed"))

    def broken():
        raise RuntimeError("no plugin\n  for this driver")

    monkeypatch.setattr(jax, "devices", broken)
    lines = environment.lines()
    assert "numpy 2.10.0" in lines
    assert "flax not installed" in lines
    assert "devices: none, RuntimeError: no plugin for this driver" in lines
