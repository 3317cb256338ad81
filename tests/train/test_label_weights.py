"""Weights of labels: void pixels, padded tokens and tree nodes without a label are absent."""

import jax
import numpy as np

from calib_jax import data, train
from calib_jax.core import InMemory
from tests.train import tasks

CLASSES = tasks.NUM_CLASSES
LENGTH = 4


def state_of(module, source, objective, tx):
    start = module.init(jax.random.key(0), source[np.arange(1)].inputs, train=False)
    return train.create(jax.tree.map(lambda x: x.astype(float), start), objective, tx, CLASSES, 0)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --------------------------------------------------------------------------------------------
# Devices and feeds.


# --------------------------------------------------------------------------------------------
# Weight 0 is the same as absent.


# --------------------------------------------------------------------------------------------
# Pairs of an image and its label map.


def test_an_image_and_its_label_map_share_their_crop(x64):
    """Each label is the value of its pixel, and stays so; pixels from outside have weight 0."""
    image = np.arange(1, 13).reshape(3, 4)
    source = InMemory(
        np.tile(image[None, ..., None], (8, 1, 1, 1)), np.tile(image[None], (8, 1, 1))
    )
    crop = data.compose(data.random_crop(padding=2), data.random_flip())
    augment = jax.vmap(data.on_pairs(crop))
    keys = jax.random.split(jax.random.key(3), 8)
    inputs, labels, weights = augment(keys, source.examples)
    np.testing.assert_array_equal(inputs[..., 0], labels)
    np.testing.assert_array_equal(weights, labels > 0)
    assert len({np.asarray(one).tobytes() for one in labels}) > 4
    alone, kept, none = jax.vmap(data.on_inputs(crop))(keys, source.examples)
    np.testing.assert_array_equal(alone, inputs)  # the same stream of keys
    np.testing.assert_array_equal(kept, source.labels)
    assert none is None


# --------------------------------------------------------------------------------------------
# Bad input.
