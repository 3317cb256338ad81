"""Predictions become logits, or are refused; classes of several files are matched by name."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import report
from calib_jax.report import predictions
from calib_jax.report.command import score_files
from calib_jax.report.read import Unreadable, read_predictions
from tests.test_doctests import docstrings_of


def sample(num_rows=60, num_classes=4, seed=0):
    """Return probabilities and labels."""
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(num_classes, 0.5), size=num_rows)
    return p, np.array([random.choice(num_classes, p=row) for row in p])


def nll(p, labels, floor=0.0):
    """Compute the negative log-likelihood by its formula, in double precision."""
    true = np.maximum(p[np.arange(len(p)), labels], floor)
    return float(np.mean(-np.log(true)))


def noted(p, labels, weights=None, **options):
    floor = options.get("floor", predictions.FLOOR)
    given = predictions.Predictions(p, labels, weights, kind="probabilities", least=floor)
    return predictions.notes_on(given, given.values())


def test_zeros_are_floored_and_counted():
    p, labels = sample()
    right = np.argmax(p, axis=-1)
    labels = np.where(np.arange(60) < 50, right, np.argmin(p, axis=-1))
    p[50:57] = np.where(p[50:57] == p[50:57].min(axis=-1, keepdims=True), 0, p[50:57])
    p /= p.sum(axis=-1, keepdims=True)
    assert noted(p[:50], labels[:50]) == []
    (note,) = noted(p, labels)
    assert note.startswith("7 of 60 true classes have probability 0: NLL takes them as 1e-38; --fl")
    actual = report.as_logits(p, probabilities=True)
    expected = -np.asarray(actual)[np.arange(60), labels].mean()
    assert expected == pytest.approx(nll(p, labels, floor=1e-38), rel=1e-5)
    # Examples of weight 0 are not counted.
    labels[:2] = 255, -1
    (note,) = noted(p, labels, np.arange(60) >= 52)
    assert note.startswith("5 of 8 true classes have probability 0: ")


def test_another_floor():
    p = np.array([[0.9, 0.1 - 1e-5, 1e-5], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    labels = np.array([2, 2, 1])
    (note,) = noted(p, labels, floor=1e-3)
    assert note.startswith("2 of 3 true classes have a probability of at most 0.001: NLL takes")
    logits = predictions.as_logits(p, probabilities=True, floor=1e-3)
    np.testing.assert_allclose(np.exp(logits), np.maximum(p, 1e-3), rtol=1e-5)
    logits = predictions.as_logits(p, probabilities=True, floor=0)
    assert np.asarray(logits)[1].tolist()[2] == -np.inf
    assert noted(p, labels, floor=0)[0].endswith("NLL is infinite.")
    with pytest.raises(ValueError, match=r"floor must lie in \[0, 0.1\], got 0.105"):
        predictions.as_logits(p, probabilities=True, floor=0.105)


def test_a_logit_of_minus_infinity_is_counted():
    logits = jnp.array([[0.0, 1.0], [-jnp.inf, 0.0], [0.0, -jnp.inf]])
    (note,) = predictions.notes_on(predictions.Predictions(logits, np.zeros(3, int)), logits)
    assert note == "1 of 3 true classes have probability 0: NLL is infinite."
    right = predictions.Predictions(logits, np.array([0, 1, 0]))
    assert predictions.notes_on(right, logits) == []


@pytest.mark.parametrize("digits", [1, 2, 3, 6])
def test_rounded_probabilities_are_divided_by_their_sums(digits):
    p, labels = sample(num_classes=10)
    rounded = np.round(p, digits)
    for given in (rounded, rounded.astype(np.float32)):
        rows = predictions.probability_rows(given)
        np.testing.assert_allclose(rows.sum(-1), 1, rtol=1e-6)
        np.testing.assert_allclose(rows, rounded / rounded.sum(-1, keepdims=True), rtol=1e-5)
        notes = noted(given, labels)
        said = [note for note in notes if "divided by its sum" in note]
        assert bool(said) == (digits < 6)
    if digits == 2:
        sums = rounded.sum(-1)
        assert said == [
            f"The rows of probabilities sum to {sums.min():.4g} to {sums.max():.4g}: each was"
            " divided by its sum."
        ]


def test_sums_and_steps_have_a_tolerance():
    two = np.array([[0.25, 0.75]])
    given = [(1 + 0.95e-5) * two, (1 + 1.05e-5) * two, two[:, :1]]
    assert [len(noted(p, np.zeros(1, int))) for p in given] == [0, 1, 0]
    for row in ([0.1] * 6 + [0.0] * 3, 0.9925 * P[0]):  # 9 half steps, 1 / 128
        rows = predictions.probability_rows(np.array([row]))
        np.testing.assert_allclose(rows, [row / np.sum(row)], rtol=1e-6)
    assert [predictions.grid_of([[0.1 + e, 0.9]] * 20) for e in (1.9e-7, 2.1e-7)] == [0.1, None]


P = sample()[0]
BROKEN = np.where(np.arange(60)[:, None] == 3, np.nan, P)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (P * 0.992, "must not be negative and must sum to 1"),
        ([[0.5, 0.4894]], "must sum to 1 in every row"),  # not all of a row are on a grid of .1
        (BROKEN, "must not be negative and must sum to 1"),
        (np.log(P), "These are logarithms, or logits: leave"),
        ([[20.0, 30, 50], [10, 80, 10.2]], r"20, 30, 50 have the sum 100\. These are percentages"),
        ([[0.0, 0.3]], r"0, 0\.3 have the sum 0\.3\.$"),
        ([[0.01] * 48 + [0.0] * 72], "must sum to 1 in every row"),  # 60 half steps, but not half
        ([1.0, 73, 28], r"73 have the sum 73. These are percentages"),
        ([[1.5], [0.5]], r"1\.5 have the sum 1\.5\.$"),
        ([[-1.0], [0.5]], r"and -1 have .* These are logarithms, or logits"),
    ],
)
def test_what_are_no_probabilities(rows, message):
    with pytest.raises(ValueError, match=message):
        report.probability_rows(np.asarray(rows))


def test_long_texts_and_lists_are_cut():
    names = ["a" * 40] * 20
    assert predictions.listed(names) == ", ".join(names)
    cut = ", ".join(["a" * 40 + "..."] * 20)
    assert predictions.listed(["a" * 41] * 21) == f"{cut}, ... (21 in all)"


def test_rows_of_weight_0_may_hold_anything():
    weights = np.arange(60) != 3
    logits = predictions.as_logits(BROKEN, probabilities=True, weights=weights)
    np.testing.assert_allclose(np.delete(logits, 3, 0), np.log(np.delete(P, 3, 0)), rtol=1e-5)
    np.testing.assert_allclose(np.exp(logits[3]), 1 / 4, rtol=1e-6)  # a row of weight 0 is uniform
    with pytest.raises(ValueError, match="60 rows need as many weights, got 3"):
        predictions.as_logits(P, probabilities=True, weights=np.ones(3))


def test_probabilities_that_nobody_announced():
    for given in (P, P[:, 0], BROKEN[:, :1], np.round(BROKEN, 2)):
        with pytest.raises(ValueError, match="probabilities"):
            predictions.as_logits(given, weights=np.arange(60) != 3)
    with pytest.raises(TypeError, match="must be floating point, got int64"):
        predictions.as_logits(np.ones((3, 2), np.int64))
    with pytest.raises(ValueError, match=r"there are no predictions, their shape is \(0, 3\)"):
        predictions.as_logits(np.ones((0, 3)))


def test_logits_with_a_large_offset_keep_their_digits():
    random = np.random.default_rng(0)
    logits = random.standard_normal((50, 3))
    expected = np.argmax(logits, axis=-1)
    np.testing.assert_allclose(predictions.as_logits(logits), logits, rtol=1e-6)
    for offset in (-1e6, 10_500, 1e9):
        actual = np.asarray(predictions.as_logits(logits + offset))
        assert (actual.argmax(axis=-1) == expected).all()
        differences = logits - logits.max(axis=-1, keepdims=True)
        np.testing.assert_allclose(actual, differences, atol=1e-5)


# Files that list their classes in other orders.
NAMES = ("cat", "dog", "fish")
ORDER = [2, 0, 1]


def ordered(num_rows=90, seed=0):
    """Return logits with a bias of each class, and labels."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((num_rows, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return np.round(2 * logits + [1.5, 0, -1.5], 3), labels


def write(path, logits, labels, names=NAMES, *, text=False):
    """Write a file of any kind; labels are numbers in its own order of the classes, or names."""
    values = [names[label] for label in labels] if text else labels.tolist()
    if path.suffix == ".npz":
        np.savez(path, logits=logits, labels=values, class_names=names)
        return str(path)
    rows = [",".join(map(str, row)) for row in zip(values, *logits.T[: len(names)], strict=True)]
    path.write_text("\n".join([",".join(["label", *(f"logit_{k}" for k in names)]), *rows]) + "\n")
    return str(path)


def reordered(path, logits, labels, **options):
    """Write the same predictions with their classes in another order."""
    names = [NAMES[k] for k in ORDER]
    return write(path, logits[:, ORDER], np.argsort(ORDER)[labels], names, **options)


def scored(*files, **options):
    small = {"metrics": ["accuracy", "nll"], "resamples": 20}
    return score_files(predictions=files, **small, **options)


@pytest.mark.parametrize("ending", ["npz", "csv"])
@pytest.mark.parametrize("text", [False, True])
def test_columns_and_labels_follow_the_names(tmp_path, ending, text):
    logits, labels = ordered()
    first = read_predictions(write(tmp_path / "a.npz", logits, labels))
    other = reordered(tmp_path / f"b.{ending}", logits, labels, text=text)
    matched = report.match_classes(read_predictions(other), first)
    np.testing.assert_array_equal(matched.logits, logits)
    np.testing.assert_array_equal(matched.labels, labels)
    assert matched.class_names == NAMES
    assert "they are matched by name" in matched.notes[-1]


def test_a_calibrator_is_fitted_to_the_classes_of_the_same_names(tmp_path):
    test = write(tmp_path / "test.csv", *ordered())
    held_out = (
        write(tmp_path / "a.csv", *ordered(seed=1)),
        reordered(tmp_path / "b.npz", *ordered(seed=1)),
    )
    expected, other = (scored(test, calibrate="platt", fit_on=[file]) for file in held_out)
    for name in ("nll", "accuracy"):
        assert other.value(name, "platt") == pytest.approx(expected.value(name, "platt"), rel=1e-5)
    assert other.value("nll", "platt") < other.value("nll")
    (note,) = (note for note in other.notes if "matched by name" in note)
    assert note.startswith(f"{held_out[1]} lists its classes in another order")


@pytest.mark.parametrize("average", [False, True])
def test_models_are_compared_class_by_class(tmp_path, average):
    logits, labels = ordered()
    first = write(tmp_path / "a.csv", logits, labels, text=True)
    better = np.round(logits - [1.5, 0, -1.5], 3)
    files = [
        write(tmp_path / "b.npz", better, labels),
        reordered(tmp_path / "c.csv", better, labels),
    ]
    expected, other = (scored(first, file, average=average) for file in files)
    assert [row.value for row in other.rows] == [row.value for row in expected.rows]
    shifted = reordered(tmp_path / "d.csv", better, (labels + 1) % 3)
    with pytest.raises(ValueError, match="a and d differ in the label of the same example"):
        scored(first, shifted, average=average)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat", "bird", "fish"), r"b\.csv has the class bird, which .*a\.csv does not have"),
        (("cat", "dog", "Fish"), r"b\.csv has the class Fish, which .*a\.csv does not have"),
        (("cat", "dog"), r"a\.csv has the class fish, which .*b\.csv does not have"),
    ],
)
def test_other_classes_are_refused_by_the_first_that_differs(tmp_path, names, message):
    logits, labels = ordered()
    first = write(tmp_path / "a.csv", logits, labels)
    other = write(tmp_path / "b.csv", logits, np.minimum(labels, len(names) - 1), names)
    with pytest.raises(Unreadable, match=message):
        scored(first, other)
    with pytest.raises(Unreadable, match=message):
        scored(first, calibrate="temperature", fit_on=[other])


def test_a_single_column_is_the_class_that_it_names(tmp_path):
    (tmp_path / "one.csv").write_text("label,logit_dog\ndog,1.25\nnot dog,-2\n")
    one = read_predictions(str(tmp_path / "one.csv"))
    assert (one.class_names, one.labels.tolist()) == (("not dog", "dog"), [1, 0])
    # Another word may be a missing label or a misspelling.
    for unknown in ("NaN", "dgo"):
        (tmp_path / "unknown.csv").write_text(f"label,logit_dog\ndog,1.25\n{unknown},-2\n")
        with pytest.raises(Unreadable, match=rf"label {unknown} of .* is none of not dog, dog"):
            read_predictions(str(tmp_path / "unknown.csv"))
    other = one._replace(class_names=("dog", "not dog"))
    matched = report.match_classes(one, other)
    np.testing.assert_array_equal(matched.logits, [[1.25, 0], [-2, 0]])
    p = one._replace(logits=np.array([0.75, 0.25]), kind="probabilities")
    matched = report.match_classes(p, other)
    np.testing.assert_array_equal(matched.logits, [[0.75, 0.25], [0.25, 0.75]])
    assert report.match_classes(one, one) is one


def test_without_names_the_position_decides_and_a_note_says_so(tmp_path):
    logits, labels = ordered()
    np.savez(tmp_path / "plain.npz", logits=logits, labels=labels)
    named = write(tmp_path / "named.csv", logits, labels)
    result = scored(named, str(tmp_path / "plain.npz"))
    plain = tmp_path / "plain.npz"
    note = f"{plain} does not name its classes, and {named} does: matched by position."
    assert result.notes[-1] == note


def test_two_classes_of_one_name_have_no_order():
    twice = report.Predictions(np.eye(3), np.arange(3), class_names=("cat", "cat", "dog"))
    assert report.match_classes(twice, twice) is twice
    for other in (("cat", "dog", "cat"), ("dog", "cat")):
        with pytest.raises(Unreadable, match="has two classes cat: give predictions of the same"):
            report.match_classes(twice, twice._replace(class_names=other))


def test_rows_shared_with_a_fit_are_those_beyond_chance():
    """Half of 40 rows of a fit have a twin there, so 32 + 4 x 4 x 1.61 of 64 may be equal."""
    fit = np.concatenate([np.repeat(np.arange(10.0), 2), 100 + np.arange(20)])
    for number, found in ((57, 0), (58, 58)):  # 1.61^2 is 1 + 64 / 40
        rows = np.where(np.arange(64) < number, fit[np.arange(64) % 40], 1000 + np.arange(64))
        assert shared(rows, fit) == (found, 64, 40)
    near = np.arange(50.0) + np.tile([0, 1e-4], 25)  # a hundredth of what twins say
    assert shared(near[:45], np.concatenate([near, near[::2] + 3e-4])) == (45, 45, 75)
    for distinct, found in ((9, 0), (10, 200)):  # in another order
        rows = np.arange(200.0) % distinct
        assert shared(rows, np.random.default_rng(0).permutation(rows)) == (found, 200, 200)
    for error, found in ((1.05e-4, 0), (0.95e-4, 20)):
        assert shared(100 + np.arange(20), (1 + error) * (100 + np.arange(20))) == (found, 20, 20)
    assert shared(np.eye(3), np.eye(4)) == (0, 3, 4)


def shared(rows, others):
    """Count the rows that two sets without labels and weights share."""
    sets = ((each, np.zeros(len(each)), None) for each in (rows, others))
    return predictions.shared_rows(*sets)


test_docstring = docstrings_of("report")
