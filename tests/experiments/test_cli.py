"""How binaries end."""

import errno
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from calib_jax import report
from experiments.running import cli
from tests.experiments.processes import ROOT, finish


def test_a_ctrl_c_that_nobody_waits_for_is_one_line():
    """While a config is being built, or the second one while training ends."""
    program = (
        "from experiments.running import cli\n"
        "def main():\n    raise KeyboardInterrupt\n"
        "cli.run(main)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stdout + ended.stderr == "error: interrupted.\n"


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


@pytest.mark.slow
def test_compiled_programs_are_kept_where_there_is_a_folder_for_them(tmp_path):
    program = """
import jax
from experiments.running import cli
cli.use_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: x + 1)(1))
"""
    (tmp_path / "file").write_text("")
    for home, kept in (("new/folder", True), ("file", False)):
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / home)}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        output = subprocess.check_output(
            [sys.executable, "-c", program], cwd=ROOT, text=True, env=environment
        )
        assert output == "2\n"
        assert bool(list(tmp_path.glob(f"{home}/calib_jax/compiled/*"))) == kept


def test_help_lists_the_config():
    output = finish("train", "--help")
    assert "\n  --config: " in output
    assert "\n  --workdir: " in output


@pytest.mark.parametrize("binary", ["map.run", "map.report"])
def test_help_lists_every_flag_of_its_usage(binary):
    output = finish(binary, "--help")
    usage, _, listed = output.partition("\nflags:\n")
    named = re.findall(r"--(\w+)=", usage)
    assert len(named) >= 2
    for name in named:
        assert f"\n  --{name}: " in listed


def test_a_value_without_its_flag_gets_the_name_of_the_flag(tmp_path):
    for argument, flag in ((tmp_path, "workdir"), ("configs/digits.py:focal", "config")):
        output = finish("sweep", argument, code=2)
        assert output == (f"error: '{argument}' is not a flag; did you mean --{flag}={argument}?\n")


def test_lines_of_our_messages_are_kept_and_those_of_libraries_joined():
    program = """
import json
from experiments.running import cli
from calib_jax.data.formats import files
from calib_jax import data
def ours():
    files.find("cifar10", data.about("cifar10"), "/nowhere")
def theirs():
    json.loads("\\n\\n?")
    raise ValueError("never reached")
def main():
    try:
        cli.refusing(theirs)
    except cli.Refused as error:
        print(str(error).count("\\n"))
    cli.refusing(ours)
cli.run(main)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "0\n")
    assert ended.stderr.startswith("error: the data set cifar10 is not in ")
    assert len(ended.stderr.splitlines()) == 2


def test_a_config_is_looked_for_where_the_configs_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"run this from the checkout of calib_jax\.$"):
        cli._config_file("configs/digits.py")


@pytest.mark.parametrize("method", ["write_text", "write_bytes"])
def test_a_full_disk_fails_the_run_and_is_no_mistake_of_the_request(tmp_path, monkeypatch, method):
    logits = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    scored = report.score(logits, np.arange(20) % 3, metrics=["accuracy"], num_resamples=4)

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pathlib.Path, method, full)  # tables are texts, figures are bytes
    with pytest.raises(cli.Failed, match=r"cannot be written to .* No space left on device\.$"):
        cli.refusing(scored.save, tmp_path)


def test_a_limit_of_the_address_space_is_named():
    """JAX would abort in C++, without a word about the limit."""
    command = f"ulimit -v 2000000; exec {sys.executable} -m experiments.train --help"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"error: the address space is limited to 2\.0 GB \(ulimit -v\), and JAX needs \d+\.\d GB:"
        r" run `ulimit -v unlimited` first\.\n",
        done.stderr,
    )


def test_a_warning_for_the_user_is_one_line(capsys, monkeypatch):
    others = []
    monkeypatch.setattr(cli, "_show_as_python", lambda *warning: others.append(warning[1]))
    for _ in range(2):
        cli.show_warning(UserWarning("no locks\x1b here"), UserWarning, "lock.py", 3)
    cli.show_warning(DeprecationWarning("old"), DeprecationWarning, "lock.py", 3)
    assert capsys.readouterr().err == "warning: no locks\\x1b here\n"
    assert others == [DeprecationWarning]


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
