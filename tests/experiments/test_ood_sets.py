"""Sets of other inputs by name: what is found, and what does not fit."""

import numpy as np
import pytest

from calib_jax import data
from experiments.datasets import ood_sets


def test_names_and_options():
    own = data.named("digits")
    result = ood_sets.named(["gaussian_noise:severity=2", "digits:seed=3"], own, None)
    assert list(result) == ["gaussian_noise_severity_2", "digits_seed_3"]
    noise, other = (source.inputs for source in result.values())
    assert noise.shape == own.test.inputs.shape
    # Digits have 17 shades, so the noise is measured on their scale.
    same = (own.test.inputs > 4) & (own.test.inputs < 12)
    change = (noise[same].astype(float) - own.test.inputs[same] + 0.5) / 16
    assert np.std(change) == pytest.approx(np.hypot(0.06, 1 / 16 / 12**0.5), rel=0.05)
    np.testing.assert_array_equal(other, data.named("digits", seed=3).test.inputs)


def test_a_set_of_the_users_own_by_import_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_sets.py").write_text(
        "from calib_jax import data\n"
        "def mine(*, seed: int = 1):\n"
        "    return data.named('digits', seed=seed)\n"
    )
    digits = data.named("digits")
    sets = ood_sets.named(["own_sets:mine", "own_sets:mine:seed=3"], digits, None)
    assert list(sets) == ["own_sets_mine", "own_sets_mine_seed_3"]
    last = sets["own_sets_mine_seed_3"]
    np.testing.assert_array_equal(last.inputs, data.named("digits", seed=3).test.inputs)
    with pytest.raises(ValueError, match=r"the module own_sets has no 'min'; did you mean 'mi"):
        ood_sets.named(["own_sets:min"], digits, None)
    with pytest.raises(TypeError, match="did you mean 'seed'"):
        ood_sets.named(["own_sets:mine:sed=3"], digits, None)
