"""Invalid logits, labels and weights are counted, and an error names the counts."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core import values

INF = np.inf
LABELS = jnp.zeros(3, int)
LOGITS = jnp.asarray([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_what_is_not_finite(transform, dtype):
    """Check that a class may be impossible, and that nothing else may be off."""
    rows = np.array([
        [1, 2, 3], [1, -INF, 0], [0, -INF, -INF],
        [np.nan, 1, 2], [-INF, 1, np.nan], [INF, 0, 0], [INF, -INF, 0], [-INF, -INF, -INF],
    ], dtype)  # fmt: skip
    actual = transform(values.not_finite)(rows)
    np.testing.assert_array_equal(actual, [False] * 3 + [True] * 5)
    for width in (17, 64, 1000):  # a maximum keeps a NaN wherever it stands
        wide = np.zeros((width, width), dtype)
        wide[np.arange(width), np.arange(width)] = np.nan
        assert transform(values.not_finite)(wide).all()


def refusal(logits=LOGITS, labels=LABELS, weights=None):
    actual = jax.jit(values.count_invalid_values)(logits, labels, weights)
    with pytest.raises(ValueError, match=r"^f: ") as caught:
        values.refuse("f", actual, logits.shape)
    assert all(len(line) <= 121 for line in str(caught.value).split("\n"))
    return str(caught.value)


def test_refusals():
    impossible = LOGITS.at[0, 0].set(-INF)
    values.refuse("f", values.count_invalid_values(impossible, LABELS, None), (3, 2))
    assert "1 of 3 rows have NaN or infinite" in refusal(LOGITS.at[0, 0].set(INF))
    assert "2 of 3 rows have NaN or infinite" in refusal(LOGITS.at[:2].set(-INF))
    assert "1 of 3 labels" in refusal(labels=LABELS.at[1].set(2))
    for wrong in (-1.0, np.nan, INF):
        sentence = "1 of 3 weights are negative, infinite or NaN"
        assert sentence in refusal(weights=jnp.asarray([1, 1, wrong]))
    assert "all 3 weights are 0" in refusal(weights=jnp.zeros(3))
    huge = refusal(weights=jnp.full(3, 3e38))
    assert re.search("the weights sum to inf.* divide them all by the largest", huge)
    assert "sum to 3e+37" in refusal(weights=jnp.full(3, 1e37))
    values.refuse("f", values.count_invalid_values(LOGITS, LABELS, jnp.full(3, 1e29)), (3, 2))


def test_a_label_beyond_32_bits_stays_wrong(x64):
    assert "1 of 3 labels" in refusal(labels=jnp.asarray([0, 2**40, 0]))
