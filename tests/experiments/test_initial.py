"""Beginning with weights that are there: of a run, with the same classes or others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from experiments.running import initial

STEP = 7


def variables_of(num_classes, hidden=(6,), seed=0):
    network = models.mlp(num_classes=num_classes, hidden=hidden)
    return network, network.init(jax.random.key(seed), jnp.zeros((1, 4)), train=False)


@pytest.fixture(scope="module", params=[False, True], ids=["own", "averaged"])
def run(request, tmp_path_factory):
    """A run with one checkpoint, and what it is evaluated with."""
    folder = tmp_path_factory.mktemp("run")
    _, variables = variables_of(3)
    tx = train.optimizer("sgd", 0.1)
    state = train.create(variables, losses.objective("adafocal"), tx, 3, 0, averaged=request.param)
    if request.param:
        state = state._replace(average=jax.tree.map(lambda leaf: leaf + 1, state.average))
        variables = {"params": state.average[0]}
    checkpoints = train.Checkpoints(folder / "checkpoints")
    about = {"best": {"nll": {"step": STEP, "epoch": 1.0, "value": 0.5}}}
    checkpoints.save(jax.device_get(state), about, STEP)
    checkpoints.wait()
    checkpoints.close()
    return folder, variables


@pytest.mark.parametrize("ending", ["", ":best_nll", f":{STEP}"])
def test_a_run_hands_out_what_it_is_evaluated_with(run, ending):
    folder, variables = run
    network, random = variables_of(3, seed=1)
    result = initial.variables(f"{folder}{ending}", network, random)
    for one, other in zip(*map(jax.tree.leaves, (result, variables)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_classes_get_another_head(run, capsys):
    folder, variables = run
    network, random = variables_of(5, seed=1)
    result = initial.variables(str(folder), network, random)
    params, before, fresh = (tree["params"] for tree in (result, variables, random))
    np.testing.assert_array_equal(params["hidden1"]["kernel"], before["hidden1"]["kernel"])
    np.testing.assert_array_equal(params["head"]["kernel"], fresh["head"]["kernel"])
    np.testing.assert_array_equal(params["head"]["bias"], fresh["head"]["bias"])
    assert (
        "has another number of classes: the last layer is initialised at random"
        in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="and the data set have different numbers of classes"):
        initial.variables(str(folder), network, random, anew=False)


@pytest.mark.parametrize("name", ["theirs.npz", "theirs.safetensors"])
def test_a_released_network_with_our_classes_or_others(name, tmp_path):
    network, other = (models.resnet([1], width=2, num_classes=n) for n in (4, 6))
    init = functools.partial(network.init, train=False)
    x = jnp.zeros((1, 8, 8, 3))
    theirs, ours = (init(jax.random.key(seed), x) for seed in (0, 1))
    models.write_weights(tmp_path / name, models.to_torch(network, theirs))
    result = initial.variables(str(tmp_path / name), network, ours)
    for one, wanted in zip(*map(jax.tree.leaves, (result, theirs)), strict=True):
        np.testing.assert_array_equal(one, wanted)
    random = other.init(jax.random.key(1), x, train=False)
    result = initial.variables(str(tmp_path / name), other, random)
    np.testing.assert_array_equal(
        result["params"]["conv"]["kernel"], theirs["params"]["conv"]["kernel"]
    )
    assert result["params"]["head"]["kernel"].shape == (2, 6)
