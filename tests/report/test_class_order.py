"""Files that list their classes in other orders: matched by name, whatever the format."""

import numpy as np
import pytest

from calib_jax import report
from calib_jax.report.files import score_files
from calib_jax.report.read import Unreadable, read_predictions

NAMES = ("cat", "dog", "fish")
ORDER = [2, 0, 1]


def sample(num_rows=90, seed=0):
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
    logits, labels = sample()
    first = read_predictions(write(tmp_path / "a.npz", logits, labels))
    other = reordered(tmp_path / f"b.{ending}", logits, labels, text=text)
    matched = report.match_classes(read_predictions(other), first)
    np.testing.assert_array_equal(matched.logits, logits)
    np.testing.assert_array_equal(matched.labels, labels)
    assert matched.class_names == NAMES
    assert "they are matched by name" in matched.notes[-1]


def test_a_calibrator_is_fitted_to_the_classes_of_the_same_names(tmp_path):
    test = write(tmp_path / "test.csv", *sample())
    held_out = (
        write(tmp_path / "a.csv", *sample(seed=1)),
        reordered(tmp_path / "b.npz", *sample(seed=1)),
    )
    expected, other = (scored(test, calibrate="vector", fit_on=[file]) for file in held_out)
    for name in ("nll", "accuracy"):
        assert other.value(name, "vector") == expected.value(name, "vector")
    assert other.value("nll", "vector") < other.value("nll")
    (note,) = (note for note in other.notes if "matched by name" in note)
    assert note.startswith(f"{held_out[1]} lists its classes in another order")


@pytest.mark.parametrize("average", [False, True])
def test_models_are_compared_class_by_class(tmp_path, average):
    logits, labels = sample()
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
    logits, labels = sample()
    first = write(tmp_path / "a.csv", logits, labels)
    other = write(tmp_path / "b.csv", logits, np.minimum(labels, len(names) - 1), names)
    with pytest.raises(Unreadable, match=message):
        scored(first, other)
    with pytest.raises(Unreadable, match=message):
        scored(first, calibrate="temperature", fit_on=[other])


def test_a_single_column_is_the_class_that_it_names(tmp_path):
    (tmp_path / "two.csv").write_text("label,logit_dog,logit_cat\ndog,1.5,0.5\ncat,0,2\n")
    (tmp_path / "one.csv").write_text("label,logit_dog\n1,1.25\n0,-2\n")
    (tmp_path / "cat.csv").write_text("label,logit_cat\n1,1.25\n0,-2\n")
    two, one, cat = (read_predictions(str(tmp_path / f"{k}.csv")) for k in ("two", "one", "cat"))
    matched = report.match_classes(one, two)
    np.testing.assert_array_equal(matched.logits, [[1.25, 0], [-2, 0]])
    assert matched.labels.tolist() == two.labels.tolist() == [0, 1]
    p = one._replace(logits=np.array([0.75, 0.25]))
    matched = report.match_classes(p, two, probabilities=True)
    np.testing.assert_array_equal(matched.logits, [[0.75, 0.25], [0.25, 0.75]])
    with pytest.raises(Unreadable, match="these predictions has the class dog, which the others"):
        report.match_classes(one, cat)
    assert report.match_classes(one, one) is one


def test_without_names_the_position_decides_and_a_note_says_so(tmp_path):
    logits, labels = sample()
    np.savez(tmp_path / "plain.npz", logits=logits, labels=labels)
    named = write(tmp_path / "named.csv", logits, labels)
    result = scored(named, str(tmp_path / "plain.npz"))
    plain = tmp_path / "plain.npz"
    note = f"{plain} does not name its classes, and {named} does: matched by position."
    assert result.notes[-1] == note


def test_class_names_of_arrays_that_do_not_fit_are_refused(tmp_path):
    logits, labels = sample(num_rows=4)
    path = tmp_path / "run.npz"
    for names, given, message in (
        (["cat", "dog"], labels, "2 class names and 3 classes"),
        ([1, 2, 3], labels, "class_names of .* must be one text for each class"),
        (list(NAMES), ["cat", "dog", "cow", "cat"], "label cow of .*example 2"),
        (["cat", "cat", "dog"], ["cat", "dog", "dog", "cat"], "two classes of one name"),
    ):
        np.savez(path, logits=logits, labels=given, class_names=names)
        with pytest.raises(Unreadable, match=message):
            read_predictions(str(path))
    np.savez(path, logits=logits, labels=labels, class_names=["cat", "cat", "dog"])
    twice = read_predictions(str(path))
    assert report.match_classes(twice, twice) is twice
    with pytest.raises(
        Unreadable, match="has two classes cat: give predictions of the same classes"
    ):
        report.match_classes(twice, twice._replace(class_names=("cat", "dog", "cat")))
