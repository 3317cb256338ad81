"""Small things to train: a network without Flax, data from a formula, and the step's devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax import losses, train
from calib_jax.core import InMemory
from calib_jax.core.examples import Source

NUM_CLASSES = 5
NUM_FEATURES = 6


def forward(params, model_state, inputs, *, train, rng=None, weights=None):
    """Two layers."""
    hidden = jnp.tanh(inputs @ params["in"] + params["in_bias"][None])
    return hidden @ params["out"] + params["out_bias"][None], model_state, None


def variables(seed=0, dtype=float):
    random = np.random.default_rng(seed)
    shapes = {
        "in": (NUM_FEATURES, 16),
        "in_bias": (16,),
        "out": (16, NUM_CLASSES),
        "out_bias": (NUM_CLASSES,),
    }
    return {"params": {k: jnp.asarray(random.normal(0, 0.5, s), dtype) for k, s in shapes.items()}}


def examples(num_examples=40, seed=1, dtype=float):
    """Five noisy clusters."""
    random = np.random.default_rng(seed)
    labels = random.integers(NUM_CLASSES, size=num_examples)
    centres = np.random.default_rng(0).normal(0, 2, (NUM_CLASSES, NUM_FEATURES))
    inputs = centres[labels] + random.normal(0, 2, (num_examples, NUM_FEATURES))
    return InMemory(inputs.astype(dtype), labels.astype(np.int32))


@dataclasses.dataclass(frozen=True)
class OnDisk:
    """A source that is not in memory, and knows no label without reading it."""

    source: Source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index]


def sgd(rate=0.05):
    return optax.chain(optax.add_decayed_weights(1e-3), optax.sgd(rate, momentum=0.9))


def state_of(objective, tx=None, *, seed=0, dtype=float, averaged=False):
    tx = sgd() if tx is None else tx
    start = variables(dtype=dtype)
    counts = np.arange(1, NUM_CLASSES + 1)
    return train.create(
        start, objective, tx, NUM_CLASSES, seed, averaged=averaged, class_counts=counts
    )


def trained(
    objective,
    source,
    *,
    num_devices,
    steps,
    batch_size=10,
    reduction="mean",
    accumulate=1,
    feed=train.Resident,
    tx=None,
    dtype=float,
    network=forward,
    **options,
):
    """Train with the feed's own loop; return the state on the devices, and what was measured."""
    devices = train.local_devices(num_devices)
    tx = sgd() if tx is None else tx
    step = train.make_train_step(
        network,
        objective,
        tx,
        reduction=reduction,
        axis_name=train.AXIS,
        accumulate=accumulate,
        **options,
    )
    state = train.replicate(state_of(objective, tx, dtype=dtype), devices)
    run_steps = feed(source, devices).training(step, accumulate=accumulate)
    measured = []
    done = epoch = 0
    while done < steps:
        numbers = train.shuffled(len(source), 0, epoch)
        order = train.in_batches(numbers, batch_size, multiple=num_devices, accumulate=accumulate)
        stop = min(order.num_steps, steps - done)
        state, read = run_steps(state, order, None, 0, stop)
        measured.append(read())
        done, epoch = done + stop, epoch + 1
    return state, jax.tree.map(lambda *parts: np.concatenate(parts), *measured)


def objectives():
    """Every name of the catalogue, but for losses whose labels are images."""
    return [name for name in losses.catalogue() if name != "neighbour_margin"]


def differing(tree):
    """List the leaves whose copies are not bitwise equal on all devices."""
    paths = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        copies = [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards]
        if len(set(copies)) > 1:
            paths.append(jax.tree_util.keystr(path, simple=True, separator="/"))
    return paths
