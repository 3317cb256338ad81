"""What public functions say about their arguments: the value that is wrong, and the way out."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core import arrays, checks
from calib_jax.core.names import check_options, options_of


@arrays.takes_logits()
def hard(logits, labels, weights=None, *, scale=1.0):
    return scale * (logits[..., 0] + labels)


@arrays.takes_logits(soft_labels=True)
def soft(logits, labels):
    return logits[..., 0]


LOGITS, LABELS = np.zeros((4, 3), np.float32), np.zeros(4, int)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hard(LABELS, LOGITS), TypeError, "hard: logits .* int.* swapped"),
        (lambda: hard(LOGITS > 0, LABELS), TypeError, "floating point, got bool"),
        (lambda: hard(np.float32(1), LABELS), ValueError, re.escape("got ()")),
        (lambda: hard(np.zeros((4, 0), np.float32), LABELS), ValueError, re.escape("got (4, 0)")),
        (
            lambda: hard(LOGITS, LABELS[:3]),
            ValueError,
            re.escape("(4, 3) need labels of shape (4,)"),
        ),
        (lambda: hard(LOGITS, LOGITS), ValueError, re.escape("got (4, 3)")),
        (lambda: hard(LOGITS, LABELS * 1.0), TypeError, "must be integers, got float"),
        (lambda: soft(LOGITS, LABELS * 1.0), TypeError, "soft labels need one more axis"),
        (lambda: soft(LOGITS, LOGITS[:, :2]), ValueError, re.escape("got (4, 2)")),
        (lambda: hard(LOGITS, LABELS, np.ones(3)), ValueError, re.escape("(4,), one for each")),
        (lambda: hard(LOGITS, LABELS, weights=np.ones((4, 1))), ValueError, re.escape("(4, 1)")),
        (lambda: checks.at_least("gamma", -1, 0), ValueError, "gamma must be at least 0, got -1"),
        (lambda: checks.at_least("beta", 0.5, 1, " to be a norm"), ValueError, "1 to be a norm"),
        (lambda: checks.at_least("gamma", np.nan, 0), ValueError, "got nan"),
        (lambda: checks.at_least("gamma", jnp.asarray([1.0, -2.0]), 0), ValueError, "-2"),
        (lambda: checks.above("step", 0, 0), ValueError, "step must be greater than 0, got 0"),
        (lambda: checks.above("step", np.nan, 0), ValueError, "got nan"),
        (lambda: checks.between("p", 1.5, 0, 1), ValueError, re.escape("[0, 1], got 1.5")),
        (lambda: checks.between("p", np.nan, 0, 1), ValueError, "got nan"),
        (lambda: checks.ascending("edges", (0.5, 0.5)), ValueError, "edges must ascend"),
        (lambda: checks.ascending("edges", (0.5, np.nan)), ValueError, "edges must ascend"),
        (lambda: checks.same_length(a=[1], b=[1, 2]), ValueError, "a has 1, b has 2"),
        (lambda: checks.one_of("form", "pur", ("pure", "scaled")), ValueError, "mean 'pure'"),
        (lambda: checks.one_of("form", "zzz", ("pure", "scaled")), ValueError, r"got 'zzz'\.$"),
        (lambda: checks.one_of("form", None, ("pure", "scaled")), ValueError, r"got None\.$"),
        (lambda: checks.one_of("form", 3, ("pure", "scaled")), ValueError, r"got 3\.$"),
        (lambda: check_options("f", hard, {"scal": 1}), TypeError, "'scale'"),
        (lambda: check_options("f", len, {"x": 1}), TypeError, "it has none"),
    ],
)
def test_a_mistake_is_one_sentence(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert re.fullmatch(r"[^\n]+[.?]", str(caught.value))


def test_what_is_right_passes():
    checks.at_least("gamma", 0, 0)
    checks.at_least("gamma", jnp.asarray([0.0, 2.0]), 0)
    checks.above("step", 1e-9, 0)
    checks.between("p", 0, 0, 1)
    checks.between("p", 1, 0, 1)
    checks.ascending("edges", ())
    checks.ascending("edges", (0.1, 0.2))
    checks.same_length(a=[1], b=[2])
    checks.one_of("form", "pure", ("pure", "scaled"))
    check_options("f", hard, {"scale": 2})


def test_numpy_lists_and_narrow_types_become_arrays():
    assert isinstance(hard(LOGITS, LABELS), jax.Array)
    assert hard([[1.0, 2.0]], [0]).shape == (1,)
    assert hard(LOGITS.astype(np.float16), LABELS.astype(np.uint8)).shape == (4,)

    @arrays.takes_logits()
    def dtype_of(logits, labels, weights=None):
        return None if weights is None else weights.dtype

    assert dtype_of(LOGITS, LABELS) is None
    for given in (np.bool_, np.int32, np.float16):
        assert dtype_of(LOGITS, LABELS, np.ones(4, given)) == jnp.float32
        assert dtype_of(LOGITS, LABELS, weights=np.ones(4, given)) == jnp.float32


def test_a_scalar_example_and_an_empty_batch():
    assert hard(LOGITS[0], LABELS[0]).shape == ()
    assert hard(LOGITS[:0], LABELS[:0]).shape == (0,)


def test_the_function_keeps_its_face():
    assert hard.__name__ == "hard"
    assert list(options_of(hard)) == ["scale"]
    with pytest.raises(TypeError, match="scal"):
        hard(LOGITS, LABELS, scal=2.0)


def test_arguments_that_do_not_fit_name_the_function():
    with pytest.raises(
        TypeError, match=r"^'hard' has no option 'scal' .*; did you mean 'scale'\?$"
    ):
        hard(LOGITS, LABELS, scal=2.0)
    sentence = (
        "hard takes 3 positional arguments (logits, labels, weights), got 4: options are keywords,"
        " such as scale=."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        hard(LOGITS, LABELS, None, 2.0)
    with pytest.raises(
        TypeError, match=r"^soft takes 2 positional .* \(logits, labels\), got 3\.$"
    ):
        soft(LOGITS, LABELS, None)


def test_a_traced_number_is_not_checked_and_a_known_one_is():
    @jax.jit
    def traced(gamma):
        assert not arrays.concrete(gamma)
        checks.at_least("gamma", gamma, 0)
        checks.above("gamma", gamma, 0)
        checks.between("gamma", gamma, 0, 1)
        checks.ascending("gammas", (gamma, 0.0))
        checks.at_least("high", 1.0, gamma)
        return gamma

    assert traced(-1.0) == -1
    with pytest.raises(ValueError, match="got -1"):
        jax.jit(lambda x: checks.at_least("gamma", -1, 0))(0.0)


def test_a_long_list_is_not_recited_to_one_who_mistyped():
    names = [f"member{i}" for i in range(11)]
    with pytest.raises(ValueError, match=r"^no loss is called 'membr3'; did you mean 'member3'\?$"):
        checks.one_of("loss", "membr3", names)
    few = r"^no loss is called 'zzz'; the closest of 11 are ('member\d+', ){4}'member\d+'\.$"
    with pytest.raises(ValueError, match=few):
        checks.one_of("loss", "zzz", names)


def test_the_nearest_name():
    assert checks.nearest("focla", ["focal", "brier"]) == "; did you mean 'focal'?"
    assert checks.nearest("xyz", ["focal", "brier"]) == "."
    assert checks.nearest("xyz", []) == "."
