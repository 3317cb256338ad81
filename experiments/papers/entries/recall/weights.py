"""What the class weights of the recall loss (Tian et al. 2021) do to losses and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.special

from calib_jax import losses
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import every
from experiments.papers.judge.values import Value

CLASSES, ROWS = 6, 2_000


def _examples(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw logits and labels, and compute the miss rates 1 - recall of the classes."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(CLASSES, size=ROWS, p=np.arange(1, CLASSES + 1) / 21)
    logits = generator.standard_normal((ROWS, CLASSES))
    logits[np.arange(ROWS), labels] += 1.5
    wrong = logits.argmax(axis=-1) != labels
    miss = np.array([wrong[labels == k].mean() for k in range(CLASSES)])
    return logits, labels, miss


def cheating() -> dict[str, Value]:
    """Raise p_y of the right predictions alone, and compare losses and predictions."""
    generator = np.random.default_rng(1)
    fall, recall_fall, changed, cases = np.inf, np.inf, 0, 50
    with jax.enable_x64(True):
        focal = jax.jit(lambda z, y: jnp.mean(losses.focal(z, y, gamma=2.0)))
        recall = jax.jit(lambda z, y, m: jnp.mean(losses.recall(z, y, losses.RecallState(m))))
        for seed in range(cases):
            logits, labels, miss = _examples(seed)
            right = logits.argmax(axis=-1) == labels
            raised = logits.copy()
            raised[right, labels[right]] += generator.uniform(0.01, 3, right.sum())
            changed += int(np.sum(raised.argmax(axis=-1) != logits.argmax(axis=-1)))
            fall = min(fall, float(focal(logits, labels) - focal(raised, labels)))
            recall_fall = min(
                recall_fall, float(recall(logits, labels, miss) - recall(raised, labels, miss))
            )
    return {
        "least fall of the focal loss": Value(fall, rows=cases * ROWS),
        "changed predictions": Value(changed, rows=cases * ROWS),
        "least fall of the recall loss": Value(
            recall_fall, rows=cases * ROWS, note="it can be lowered in the same way"
        ),
    }


def gradient_of_right() -> dict[str, Value]:
    """Compute the gradient of the recall loss at right predictions, and compare it with 1 - R."""
    logits, labels, miss = _examples()
    right = logits.argmax(axis=-1) == labels
    with jax.enable_x64(True):

        def total(z: jax.Array, rates: jax.Array) -> jax.Array:
            return jnp.sum(losses.recall(z, labels, losses.RecallState(rates)))

        gradient = np.asarray(jax.jit(jax.grad(total))(logits, miss))
        perfect = np.asarray(jax.jit(jax.grad(total))(logits, np.zeros(CLASSES)))
        released = losses.objective("recall", counters="released")
        # A batch in which every prediction is right.
        state = released.init(CLASSES)
        evidence = released.evidence(state, logits[right], labels[right])
        state = released.update(state, evidence, losses.Progress(1, 0, 1))
    plain = scipy.special.softmax(logits, axis=-1) - np.eye(CLASSES)[labels]
    expected = miss[labels][:, None] * plain
    norms = np.linalg.norm(gradient[right], axis=-1)
    counts = np.bincount(labels[right], minlength=CLASSES)
    return {
        "largest gradient norm at right predictions": Value(
            float(norms.max()), rows=int(right.sum()), note="of classes with recall below 1"
        ),
        "least gradient norm at right predictions": Value(float(norms.min())),
        "deviation from (1 - R) times that of CE": Value(
            float(np.abs(gradient - expected).max()), rows=ROWS
        ),
        "largest gradient norm at recall 1": Value(float(np.abs(perfect[right]).max())),
        "least released weight at recall 1, times the count of the class": Value(
            float(np.min(np.asarray(state.miss_rate) * counts)), note="the weight is 1 / count"
        ),
    }


def relative_size() -> dict[str, Value]:
    """Compare steps with the weights w and w / sum(w)."""
    deviation, sums, steps = 0.0, [], []
    with jax.enable_x64(True):

        def mean(theta: jax.Array, x: jax.Array, y: jax.Array, rates: jax.Array) -> jax.Array:
            return jnp.mean(losses.recall(x @ theta, y, losses.RecallState(rates)))

        slope = jax.jit(jax.grad(mean))
        theta = np.zeros((CLASSES, CLASSES))
        for seed in range(20):
            logits, labels, miss = _examples(seed)
            sums.append(float(miss.sum()))
            whole = np.asarray(slope(theta, logits, labels, miss))
            scaled = np.asarray(slope(theta, logits, labels, miss / miss.sum()))
            gap = np.abs(scaled * miss.sum() - whole).max() / np.abs(whole).max()
            deviation = max(deviation, float(gap))
            adam = optax.adam(0.1)
            first, second = (adam.update(g, adam.init(theta))[0] for g in (whole, scaled))
            steps.append(float(np.abs(np.asarray(first) - np.asarray(second)).max() / 0.1))
    return {
        "largest relative deviation from proportional": Value(deviation, rows=20 * ROWS),
        "least distance of the sum of the weights from 1": Value(
            min(abs(total - 1) for total in sums), rows=20
        ),
        "least sum of the weights": Value(min(sums)),
        "largest sum of the weights": Value(max(sums)),
        "largest change of a step of Adam, relative": Value(
            max(steps), note="Adam undoes a factor"
        ),
    }


ENTRY = computed(
    {
        "recall-focal-can-cheat": (
            cheating,
            every(
                limits.above(0, "least fall of the focal loss"),
                limits.at_most(0, "changed predictions"),
            ),
        ),
        "recall-no-benefit-beyond-true-positive": (
            gradient_of_right,
            limits.at_most(1e-12, "largest gradient norm at right predictions"),
        ),
        "recall-weights-not-normalised": (
            relative_size,
            every(
                limits.at_most(1e-9, "largest relative deviation from proportional"),
                limits.above(1e-3, "least distance of the sum of the weights from 1"),
            ),
        ),
    }
)
