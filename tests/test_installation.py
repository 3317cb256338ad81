"""The wheel and the source distribution, installed in an environment of their own."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import calib_jax

ROOT = Path(__file__).resolve().parent.parent
RECORDS = "experiments/results/papers/runs"
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('.'))"


def run(*command, folder, **options):
    """Run a program outside the checkout; a failure shows what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, **options
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def build(source, kind):
    """Build a distribution of the checkout, or of an unpacked source distribution."""
    return source / run(sys.executable, "-c", BUILD, kind, folder=source).splitlines()[-1]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Wheel and source distribution, the latter's own wheel, and the folders of both sources."""
    folder = tmp_path_factory.mktemp("distributions")
    source, unpacked = folder / "source", folder / "unpacked"
    for name in run("git", "ls-files", folder=ROOT).splitlines():
        if not name.startswith(RECORDS):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    wheel, archive = build(source, "build_wheel"), build(source, "build_sdist")
    shutil.unpack_archive(archive, unpacked, filter="data")
    (content,) = unpacked.iterdir()
    return wheel, archive, build(content, "build_wheel"), source, content


def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("calib_jax/")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


@pytest.mark.slow
def test_both_distributions_have_the_same_files(distributions):
    wheel, _, again, *_ = distributions
    assert files(wheel) == files(again)
    tracked = run("git", "ls-files", "calib_jax", folder=ROOT).splitlines()
    pages = {name for name in tracked if name.endswith(".md")}
    assert set(files(wheel)) == set(tracked) - pages


@pytest.mark.slow
def test_they_install_and_score_predictions_outside_the_checkout(distributions, tmp_path):
    wheel, archive, *_ = distributions
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((60, 3)), random.integers(0, 3, 60)
    np.savez(tmp_path / "test.npz", logits=logits.astype(np.float32), labels=labels)
    expected = f"{np.mean(logits.argmax(axis=1) == labels):.4f}"
    for file, options in ((wheel, ()), (archive, ("--no-deps", "--force-reinstall"))):
        pip = [programs / "python", "-m", "pip", "install", "--quiet", *options, file]
        run(*pip, folder=tmp_path)
        score = [programs / "calib-score", "test.npz", "--metrics=accuracy,ece", "--cache="]
        assert f"accuracy  {expected}" in run(*score, folder=tmp_path)
        run(*score, f"--out={file.suffix}", folder=tmp_path)
        page = (tmp_path / file.suffix / "report.html").read_text(encoding="utf-8")
        assert "A forecaster states the probability of rain" in page
        version = "import calib_jax; print(calib_jax.__version__, calib_jax.__file__)"
        shown, place = run(programs / "python", "-c", version, folder=tmp_path).split()
        assert shown == calib_jax.__version__
        assert Path(place).is_relative_to(tmp_path)
    assert "No broken requirements" in run(programs / "python", "-m", "pip", "check", folder=".")


@pytest.mark.slow
def test_a_source_distribution_trains(distributions, tmp_path):
    *_, content = distributions
    train = ["-m", "experiments.train", "--config=configs/digits.py", "--config.num_epochs=1"]
    run(sys.executable, *train, f"--workdir={tmp_path}", folder=content)
    assert (tmp_path / "config.json").exists()
    assert not (content / RECORDS).exists()
