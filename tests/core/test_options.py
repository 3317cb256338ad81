"""Checks of options, and names of choices."""

import jax
import numpy as np
import pytest

from calib_jax.core import checks
from calib_jax.core.checks import name_and_options, object_at
from calib_jax.core.examples import Examples


@checks.needs_key
def drawn(*, key, num_resamples=10, level=0.9):
    return num_resamples, level


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: checks.at_least("size", 0, 1), ValueError, "size must be at least 1, got 0."),
        (lambda: checks.at_least("size", [2, np.nan], 1), ValueError, "at least 1"),
        (lambda: checks.at_least("size", None, 1), TypeError, "size must be a number, got None."),
        (lambda: checks.above("rate", 0.0, 0), ValueError, "rate must be greater than 0, got 0.0."),
        (lambda: checks.between("p", 2, 0, 1), ValueError, r"p must lie in \[0, 1\], got 2."),
        (lambda: checks.whole("n", 1.5), TypeError, "n must be an integer, got 1.5."),
        (lambda: checks.whole("n", 0), ValueError, "n must be at least 1, got 0."),
        (lambda: checks.seed(-1), ValueError, "seed must be at least 0, got -1."),
        (lambda: checks.seed(2**32), ValueError, "^seed must be less than 2.32, got 4294967296."),
        (lambda: checks.seed(2**32 - 1, 2), ValueError, "the last of 2 seeds,"),
        (lambda: checks.num_bins(100_001), ValueError, "num_bins must lie in"),
        (lambda: checks.between("p", -1, 0, 1), ValueError, r"p must lie in \[0, 1\], got -1."),
        (lambda: checks.level(0), ValueError, "level must be a fraction"),
        (lambda: checks.level(1), ValueError, "level must be a fraction"),
        (lambda: checks.level(95), ValueError, "level must be a fraction between 0 and 1, got 95."),
        (lambda: checks.ascending("steps", [1, 1]), ValueError, "steps must ascend"),
        (lambda: checks.one_of("mode", "lose", ["loss"]), ValueError, "did you mean 'loss'"),
        (lambda: checks.one_of("mode", 3, ["loss"]), ValueError, "must be one of 'loss', got 3."),
        (lambda: checks.random_key(0), TypeError, r"such as jax.random.key\(0\), got 0."),
        (lambda: drawn(), TypeError, r"drawn draws random numbers: give key=jax.random.key\(0\)."),
        (lambda: drawn(key=jax.random.key(0), num_resamples=0), ValueError, "num_resamples must"),
        (lambda: drawn(key=jax.random.key(0), level=2), ValueError, "level must be a fraction"),
    ],
)
def test_a_wrong_option_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_ends_of_a_range_are_allowed():
    checks.at_least("size", [1, 2], 1)
    jax.jit(lambda bound: checks.at_least("size", 0, bound))(1.0)  # traced, so not compared
    checks.above("rate", 1e-9, 0)
    checks.between("p", [0, 1], 0, 1)
    checks.whole("n", 1)
    checks.num_bins(1)
    checks.num_bins(100_000)
    checks.level([1e-9, 0.5, 1 - 1e-9])
    checks.seed(0)
    checks.seed(2**32 - 1)
    checks.seed(2**32 - 2, 2)
    checks.ascending("steps", [1, 2])
    assert drawn(key=jax.random.key(0)) == (10, 0.9)
    assert drawn(key=jax.random.PRNGKey(0), num_resamples=1, level=0.5) == (1, 0.5)


def test_of_many_choices_the_nearest_are_named():
    choices = [f"choice_{number}" for number in range(20)]
    with pytest.raises(ValueError, match=r"no kind is called 'choice_4_'; did you mean 'choice_4'"):
        checks.one_of("kind", "choice_4_", choices)
    checks.one_of("kind", "choice_4", choices)
    assert checks.closest("Choice-4", choices) == ["choice_4"]  # and not choice_14, too
    assert checks.closest("abcdevwxyz", ["abcde1234"]) == ["abcde1234"]  # 10 of 19 letters
    assert checks.closest("abcdevwxyz", ["abcd12345"]) == []


def test_an_unknown_option_gets_the_nearest_name():
    def function(logits, weights=None, *, gamma=3.0, weighting="loss"): ...

    assert checks.options_of(function) == {"gamma": 3.0, "weighting": "loss"}
    checks.check_options("focal", function, {"gamma": 2})
    with pytest.raises(TypeError, match=r"no option 'gama' \(it has gamma, weighting\);"):
        checks.check_options("focal", function, {"gama": 2})


def test_a_value_in_an_error_is_short():
    assert checks.short(np.zeros((2, 3))) == "float64[2,3]"
    assert checks.short(list(range(9))) == "<list of 9>"
    assert checks.short([1, "a"]) == "[1, 'a']"
    assert checks.short({"a": 1, "b": 2}) == "{'a': 1, 'b': 2}"
    assert checks.short(tuple(range(8))) == "(0, 1, 2, 3, 4, 5, 6, 7)"
    assert checks.short(Examples(np.ones(3), [[]])) == (
        "Examples(inputs=float64[3], labels=<list of 1>, weights=None)"
    )


def test_import_paths(tmp_path, monkeypatch):
    (tmp_path / "of_a_user.py").write_text("def mine(): return 7\n")
    (tmp_path / "broken_of_a_user.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert object_at("loss", "of_a_user:mine")() == 7
    assert name_and_options("of_a_user:mine:size=9") == ("of_a_user:mine", {"size": 9})
    assert name_and_options("fog:a=b:c=[3]") == ("fog", {"a": "b", "c": [3]})
    for path, message in (
        ("of_a_user:mime", "has no 'mime'; did you mean 'mine'"),
        ("of_nobody:mine", "of the loss cannot be imported .*No module named"),
        ("broken_of_a_user:mine", "cannot be imported .*ZeroDivisionError: division by zero"),
    ):
        with pytest.raises(ValueError, match=message):
            object_at("loss", path)
