"""The networks that the laws are run on: all of the catalogue, made small."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import models

CLASSES = 3
# What makes a network deep or wide, and what the laws need of it. A network with other such
# attributes is tested as large as it is.
SMALLER = {"blocks": 1, "hidden": 5}


def small(name):
    """Make a network of the catalogue with few classes, few blocks and narrow layers."""
    network = models.named(name, num_classes=CLASSES)
    changes = {}
    for field, size in SMALLER.items():
        value = getattr(network, field, None)
        if value:
            changes[field] = (size,) * len(value) if isinstance(value, tuple) else size
    return network.clone(**changes)


def distinct():
    """List the small networks, each once: those that differ in depth alone are the same."""
    found = {}
    for name in models.catalogue():
        found.setdefault(small(name), name)
    return {name: network for network, name in found.items()}


SMALL = distinct()


def images(batch, *, side=8, channels=3, dtype=np.float32, seed=0):
    draw = np.random.default_rng(seed).standard_normal((batch, side, side, channels))
    return jnp.asarray(draw, dtype)


def abstract(network, shape=(2, 8, 8, 3)):
    """Return the shapes of the variables, without computing any."""
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.eval_shape(functools.partial(network.init, train=False), jax.random.key(0), x)


def variables_of(network, x, seed=1):
    """Initialise, and move every variable a little: zeros and ones hide mistakes."""
    fresh = jax.jit(functools.partial(network.init, train=False))(jax.random.key(seed), x)
    noise = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(
            leaf + 0.1 * np.abs(noise.standard_normal(leaf.shape)), leaf.dtype
        ),
        fresh,
    )


def size(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
