"""The page on somebody else's network: its code runs, and prints what the page shows."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.experiments.processes import ROOT

PAGE = (ROOT / "experiments/documentation/public_network.md").read_text(encoding="utf-8")
DATA = Path(os.environ.get("CALIB_JAX_DATA_DIR", ""))
NUMBER = re.compile(r"\d*\.\d+")


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "pretrained/resnet56.npz").is_file(),
    reason="needs CALIB_JAX_DATA_DIR with CIFAR-10 and pretrained/resnet20.npz, resnet56.npz",
)
def test_the_page_shows_what_its_code_prints(tmp_path, monkeypatch, capsys):
    (tmp_path / "pretrained").symlink_to(DATA / "pretrained")
    monkeypatch.chdir(tmp_path)
    code, shown = re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(code, {})
    for actual, wanted in zip(
        capsys.readouterr().out.splitlines(), shown.splitlines(), strict=True
    ):
        assert NUMBER.sub("#", actual) == NUMBER.sub("#", wanted)
        found = [[float(number) for number in NUMBER.findall(line)] for line in (actual, wanted)]
        np.testing.assert_allclose(*found, atol=0.11)
    assert (tmp_path / "public/report.html").is_file()
