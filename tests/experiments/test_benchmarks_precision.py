"""The tables of precision and determinism: what counts as lost, and that it is found."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from experiments.benchmarks import determinism, precision, torch_steps


def test_the_distance_is_relative_to_the_largest_entry():
    nan, inf = np.nan, np.inf
    expected = {"a": np.array([4.0, nan, inf, -inf]), "b": np.array([0.0, 0.5])}
    assert precision.distance(expected, expected) == 0
    apart = {"a": np.array([4.4, nan, inf, -inf]), "b": np.array([0.0, 0.45])}
    assert precision.distance(apart, expected) == pytest.approx(0.1)
    for wrong in ([4.0, 1.0, inf, -inf], [4.0, nan, 7.0, -inf], [nan, nan, inf, -inf]):
        assert precision.distance(expected | {"a": np.array(wrong)}, expected) == inf


def test_sums_in_half_precision_are_found():
    """The library computes in float32, where the same formula in the dtype of logits does not."""

    def plain(z, y):
        rows = jnp.log(jnp.sum(jnp.exp(z), axis=-1)) - z[jnp.arange(len(y)), y]
        return {"value": rows.astype(jnp.promote_types(z.dtype, jnp.float32))}

    def ours(z, y):
        return {"value": losses.cross_entropy(z, y)}

    for function, lost in ((plain, ["bfloat16", "float16"]), (ours, [])):
        ((result, errors),) = precision.errors(function)
        assert precision.missed({"result": result, "errors": errors}) == lost
        # Half a unit in the last place of logits up to 8, relative to values of at most as much.
        assert 1e-4 < errors["bfloat16"]["input"] < 1e-2


@pytest.mark.slow
def test_no_loss_loses_more_than_promised():
    lost = {(row["name"], row["result"]): precision.missed(row) for row in precision.of_losses(())}
    # Their gradient jumps where two confidences are equal, and in float32 two of these are.
    jumps = {name: ["float32"] for name in ("esd", "mmce", "mmce_weighted")}
    assert {name: dtypes for name, dtypes in lost.items() if dtypes} == {
        (name, "gradient"): dtypes for name, dtypes in jumps.items()
    }


@pytest.mark.slow
def test_a_run_has_the_same_bits_twice():
    row = determinism.measure("mlp", "adafocal", (1, 8))
    assert row["1 twice"]
    assert row["8 twice"]
    assert row["8"] < 1e-5


@pytest.mark.slow
def test_steps_equal_those_of_pytorch():
    pytest.importorskip("torch")
    rows = torch_steps.distances(())
    assert len(rows) == len(torch_steps.NAMES)
    for row in rows:
        assert row["1"] < 1e-13, row["name"]
        # As far apart as two trainings of ours whose starts differ in the last digit.
        assert row["200"] < max(1e-9, 1e3 * row["moved"]), row["name"]
