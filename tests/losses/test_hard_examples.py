"""OHEM and bootstrapped cross-entropy against a sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def hardest(cross_entropy, kept):
    """Return the part of each example among the hardest `kept`: the last one is in it in part."""
    share = np.zeros(len(cross_entropy))
    for n in np.argsort(-cross_entropy):
        share[n] = min(1.0, kept)
        kept -= share[n]
    return share


def ohem(logits, labels, *, fraction=0.7, constants_at=None):
    """Terms whose mean is the mean of the hardest part."""
    fixed = probabilities(logits if constants_at is None else constants_at, labels).cross_entropy
    share = hardest(fixed, fraction * len(labels))
    return share / fraction * probabilities(logits, labels).cross_entropy


def bootstrapped(logits, labels, *, count=512, per_image=False, constants_at=None):
    """Terms whose mean is the mean of the `count` hardest."""
    assert not per_image
    fixed = probabilities(logits if constants_at is None else constants_at, labels).cross_entropy
    kept = min(count, len(labels))
    share = hardest(fixed, kept)
    return share * len(labels) / kept * probabilities(logits, labels).cross_entropy


REFERENCES = {"ohem": ohem, "bootstrapped": bootstrapped}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("ohem", {}), ("ohem", {"fraction": 0.25})),
        *(("bootstrapped", {}), ("bootstrapped", {"count": 3.0})),
    ],
)
def test_value_and_gradient(name, options):
    checks.check_objective(name, REFERENCES[name], **options)


def test_a_batch_of_less_weight_is_kept_whole():
    """Weights from 1e-4 to 1e4: rounding of their sums drops no example of the smallest."""
    random = np.random.default_rng(0)
    labels = random.integers(10, size=50)
    for _ in range(20):
        logits = random.standard_normal((50, 10)).astype(np.float32)
        weights = (10.0 ** random.uniform(-4, 4, size=50)).astype(np.float32)
        wanted = losses.cross_entropy(logits, labels)
        for name, options in (("ohem", {"fraction": 1.0}), ("bootstrapped", {"count": 1e9})):
            terms = losses.objective(name, **options).value((), logits, labels, weights)
            np.testing.assert_allclose(terms, wanted, rtol=1e-6)


def test_equal_losses_share_and_weights_are_copies():
    """Losses log 2 three times and log 4 once: of 2 kept, the others have a third of one each."""
    logits = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [np.log(3.0), 0.0]])
    objective = losses.objective("ohem", fraction=0.5)
    terms = objective.value((), logits, [0, 1, 0, 1])
    np.testing.assert_allclose(terms, [2 / 3 * np.log(2)] * 3 + [2 * np.log(4)], rtol=1e-6)
    weighted = objective.value((), logits[[0, 3]], [0, 1], [3.0, 1.0])
    np.testing.assert_allclose(weighted, terms[np.array([0, 3])], rtol=1e-6)


@pytest.mark.slow
def test_bootstrapped_per_image():
    """Check the mean over images, of which one has fewer pixels than are kept and one has none."""
    logits, labels = checks.batch(18)
    cross_entropy = probabilities(logits, labels).cross_entropy.reshape(3, 6)
    logits, labels = logits.reshape(3, 6, 5), labels.reshape(3, 6)
    weights = np.ones((3, 6), np.float32)
    weights[1], weights[2, :4] = 0, 0
    objective = losses.objective("bootstrapped", count=3, per_image=True)
    expected = (np.sort(cross_entropy[0])[3:].mean() + cross_entropy[2, 4:].mean()) / 2
    terms = objective.value((), logits, labels, weights)
    np.testing.assert_allclose(np.sum(terms * weights) / 8, expected, rtol=1e-5)

    images = [part.reshape(3, 1, *part.shape[1:]) for part in (logits, labels, weights)]
    over = jax.vmap(
        lambda *part: objective.value((), *part, axis_name="devices"), axis_name="devices"
    )
    np.testing.assert_allclose(over(*map(jnp.asarray, images))[:, 0], terms, rtol=1e-5)
    with pytest.raises(ValueError, match="per_image needs labels of shape"):
        objective.value((), logits[0], labels[0])


@pytest.mark.parametrize("name", ["ohem", "bootstrapped"])
def test_an_empty_batch_has_no_terms(name):
    terms = losses.objective(name).value((), jnp.zeros((0, 3)), jnp.zeros(0, int), jnp.zeros(0))
    assert terms.shape == (0,)
