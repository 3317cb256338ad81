"""Files of predictions: what is taken under which name, and what is refused in one sentence."""

import json
import zipfile

import numpy as np
import pytest

from calib_jax import report
from calib_jax.report import read

LOGITS = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -3.0], [0.0, 4.0, 1.0], [2.0, 1.0, 0.0]])
LABELS = np.array([2, 0, 1, 1])


def csv_file(folder, *lines):
    path = folder / "run.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def npz_file(folder, **arrays):
    np.savez(folder / "run.npz", **{"logits": LOGITS, "labels": LABELS, **arrays})
    return str(folder / "run.npz")


def refused(name, message, **options):
    """Check that a file is refused, in a sentence that names it."""
    with pytest.raises((read.Unreadable, FileNotFoundError), match=message) as caught:
        read.read_predictions(str(name), **options)
    assert str(name).split(",")[0] in str(caught.value)


def test_every_kind_of_file_holds_the_same(tmp_path):
    name = npz_file(tmp_path, groups=np.array(["a", "b", "a", "a"]), weights=np.arange(4))
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    lines = ["label,logit_0,logit_1,logit_2,group,weight"]
    rows = [[LABELS[k], *LOGITS[k], "abaa"[k], k] for k in range(4)]
    lines += [",".join(map(str, row)) for row in rows]
    pair = f"{tmp_path / 'logits.npy'},{tmp_path / 'labels.npy'}"
    for one in (name, pair, csv_file(tmp_path, *lines)):
        contents = read.read_predictions(one)
        np.testing.assert_array_equal(contents.labels, LABELS)
        np.testing.assert_array_equal(contents.logits, LOGITS)
        assert contents.notes == ()
        if one != pair:
            assert contents.weights.tolist() == [0, 1, 2, 3]
            assert contents.groups.tolist() == ["a", "b", "a", "a"]


@pytest.mark.parametrize("spelling", ["cluster", "Clusters"])
def test_clusters_have_their_name_or_a_chosen_one(tmp_path, spelling):
    ids = np.array(["x", "y", "x", "y"])
    photo = np.arange(4)
    npz = npz_file(tmp_path, **{spelling: ids, "Photo": photo, "group": ids})
    lines = [f"label,logit_0,Photo,{spelling},group", "1,2.5,0,x,x", "0,1,1,y,y"]
    table = csv_file(tmp_path, *lines)
    for name, num_rows in ((npz, 4), (table, 2)):
        contents = read.read_predictions(name)
        assert contents.clusters.tolist() == ids[:num_rows].tolist()
        assert contents.notes[0].endswith("ignored: Photo.")
        contents = read.read_predictions(name, clusters="photo")
        assert [str(k) for k in contents.clusters] == [str(k) for k in photo[:num_rows]]
        assert contents.groups.tolist() == ids[:num_rows].tolist()
        assert contents.notes[0].endswith(f"ignored: {spelling}.")
        contents = read.read_predictions(name, clusters="groups")  # an existing role changes
        assert (contents.clusters.tolist(), contents.groups) == (ids[:num_rows].tolist(), None)
        refused(name, "has no column or array called .none.", clusters="none")


def test_an_array_that_nobody_needs_is_not_read(tmp_path):
    name = npz_file(tmp_path)
    with zipfile.ZipFile(name, "a") as file:
        file.writestr("features.npy", b"no array at all")
    assert len(read.read_predictions(name).labels) == 4


ALL = {"probabilities": True}
FROM_1 = {"first_label": 1}
# The content of a table, how it is read, the numbers, the labels, and the end of the first note.
TABLES = {
    "names": ("label,cat,dog\ndog,0.5,2\ncat,1,0", {}, [[0.5, 2], [1, 0]], [1, 0], "dog = 1."),
    "left": ("id,cat,label,dog,n\n7,1,cat,2,7\n8,2,dog,3,5", {}, [[1, 2], [2, 3]], [0, 1], "id."),
    "near": ("n,logit_no,label,logit_id\n1,1,id,2\n9,2,no,0", {}, [[1, 2], [2, 0]], [1, 0], "n."),
    "numbers": ("label,logit_a,logit_b\n1,5,2\n0.0,2,0", {}, [[5, 2], [2, 0]], [1, 0], "b = 1."),
    "from 1": ("label,logit_1,logit_2\n1,0.5,2\n2,2,0", FROM_1, [[0.5, 2], [2, 0]], [0, 1], ""),
    "from 0": ("label,logit_0,logit_1\n1,0.5,2\n2,2,0", FROM_1, [[0.5, 2], [2, 0]], [0, 1], ""),
    "names from 1": ("label,a,b\nb,0.5,2\na,2,0", FROM_1, [[0.5, 2], [2, 0]], [1, 0], "b = 2."),
    "no number": ("label,logit,logit_1\n1,0.5,2\n2,2,0", FROM_1, [[2, 0.5], [0, 2]], [0, 1], ""),
    "logit": ("label,logit\n1,2.5\n0,1", {}, [2.5, 1], [1, 0], ""),
    "logit 1": ("label,logit_1\n1,2.5\n0,1", {}, [[2.5], [1]], [1, 0], ""),
    "probability": ("label,Probability\n1,0.75\n0,0.25", {}, [0.75, 0.25], [1, 0], ""),
    "class 1": ("label,probability_1\n1,0.75\n0,0.25", {}, [[0.75], [0.25]], [1, 0], ""),
    "class 2": ("label,probability_2\n2,0.75\n1,1", FROM_1, [[0.75], [1]], [1, 0], ""),
    "one name": ("label,logit_cat\ncat,2.5\ncat,1", {}, [[2.5], [1]], [1, 1], "class cat = 1."),
    "one number": ("label,logit_cat\n1,2.5\n0,1", {}, [[2.5], [1]], [1, 0], "class cat = 1."),
    "logits": ("label,logit_0,prob_1\n1,2.5,0.75", {}, [[2.5]], [1], "ignored: prob_1."),
    "wanted": ("label,logit_0,prob_1\n1,2.5,0.75", ALL, [[0.75]], [1], "ignored: logit_0."),
    "beside": ("label,a,b,epoch,n\na,2,1,7,1\nb,0,1,7,2", {}, [[2, 1], [0, 1]], [0, 1], "b = 1."),
    "present": ("label,a,b,c,weight\na,1,2,5,1\nb,2,1,5,1", {}, [[1, 2], [2, 1]], [0, 1], "b = 1."),
    "absent": ("label,a,b,weight\na,1,2,2\nz,2,1,0", {}, [[1, 2], [2, 1]], [0, -1], "b = 1."),
    "nan": ("label,logit_0,logit_1,weight\n0,nan,2,0", {}, [[np.nan, 2]], [0], ""),
    "sum": (
        "label,a,b,c\na,.7,.2,.1\nb,0,1,0",
        ALL,
        [[0.7, 0.2, 0.1], [0, 1, 0]],
        [0, 1],
        "c = 2.",
    ),
    "no sum": ("label,a,b,c\na,.7,.3,0\nb,0,1,.052", ALL, [[0.7, 0.3], [0, 1]], [0, 1], "b = 1."),
    "words": ("label,a,b,c\na,2,1,True\na,0,1,False", {}, [[2, 1], [0, 1]], [0, 0], "ignored: c."),
    "commas": (",,\nlabel,0,1\n1,2.5,0\n,,\n , , \n,\n0,1,2", {}, [[2.5, 0], [1, 2]], [1, 0], ""),
    "percent": ("label,prob\n1,21\n0,2\n1,0\n0,1", {}, [0.21, 0.02, 0, 0.01], [1, 0, 1, 0], "100."),
    "certain": ("label,prob\n1,.5\n0,0\n1,1", {}, [0.5, 0, 1], [1, 0, 1], ""),
    "one percent": ("label,prob_1\n1,75\n0,2", {}, [[0.75], [0.02]], [1, 0], "by 100."),
    "half": ("label,prob\n1,75\n0,1\n1,0\n0,0", {}, [0.75, 0.01, 0, 0], [1, 0, 1, 0], "by 100."),
    "signs": ("label,probability\n1,75%\n0,0.5%", {}, [0.75, 0.005], [1, 0], ""),
    "tabs": ("\nlabel\tlogit_0\tlogit_1\n1\t2.5\t0\n\t\t", {}, [[2.5, 0]], [1], ""),
}


@pytest.mark.parametrize(
    ("content", "how", "numbers", "labels", "note"), TABLES.values(), ids=TABLES
)
def test_a_table_means(tmp_path, content, how, numbers, labels, note):
    contents = read.read_predictions(csv_file(tmp_path, content), **how)
    np.testing.assert_array_equal(contents.logits, numbers)
    assert contents.labels.tolist() == labels
    assert bool(contents.notes) == bool(note)
    assert not note or contents.notes[0].endswith(note)


def test_probabilities_of_arrays_are_read_where_they_are_wanted(tmp_path):
    file = npz_file(tmp_path, probabilities=np.full((4, 3), 1 / 3))
    assert read.read_predictions(file).kind == "logits"
    wanted = read.read_predictions(file, probabilities=True)
    assert (wanted.kind, wanted.logits.max()) == ("probabilities", 1 / 3)


def test_labels_of_arrays_may_run_from_one(tmp_path):
    for kind in (np.uint8, np.int64, np.float32):
        name = npz_file(tmp_path, labels=(LABELS + 1).astype(kind))
        refused(name, "labels run from 1 to 3: give --first_label=1")
        assert read.read_predictions(name, first_label=1).labels.tolist() == LABELS.tolist()
    refused(npz_file(tmp_path), r"label 0 .*\(example 1, .*classes 1 to 3", first_label=1)


@pytest.mark.parametrize(
    "label", [3, -1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, 2**63, -(2**64), 10**30]
)
def test_labels_are_compared_before_they_are_narrowed(tmp_path, label):
    lines = ["label,logit_0,logit_1,logit_2", "0,1,2,3", f"{label},1,2,3"]
    refused(csv_file(tmp_path, *lines), f"label .*{label}")
    # Of weight 0 it may be anything.
    lines = [f"{line},{weight}" for line, weight in zip(lines, ("weight", 1, 0), strict=True)]
    assert read.read_predictions(csv_file(tmp_path, *lines)).labels.tolist() == [0, -1]
    kind = np.int64 if -(2**63) <= label < 2**63 else np.uint64
    if label in (-(2**64), 10**30):
        return
    labels = np.array([2, 0, 1, label], kind)
    name = npz_file(tmp_path, labels=labels, weights=np.ones(4))
    refused(name, rf"label {label} .*\(example 3, counted from 0\)")
    contents = read.read_predictions(npz_file(tmp_path, labels=labels, weights=[1, 1, 1, 0]))
    assert contents.labels.tolist() == [2, 0, 1, -1]


def test_columns_of_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "run.parquet"

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), path)
        return str(path)

    names = ["bird", "dog", "bird", "cat"]
    by_class = {"dog": LOGITS[:, 0], "cat": LOGITS[:, 1], "bird": LOGITS[:, 2]}
    name = write(id=list(range(7, 11)), label=names, **by_class, group=list("abab"), note=["x"] * 4)
    contents = read.read_predictions(name)
    np.testing.assert_array_equal(contents.logits, LOGITS)
    assert contents.labels.tolist() == [2, 0, 2, 1]
    assert contents.groups.tolist() == list("abab")
    ignored, classes = contents.notes
    assert classes.endswith("the classes are dog = 0, cat = 1, bird = 2.")
    assert ignored.endswith("columns ignored: id, note.")
    single = [*LOGITS.astype(np.float32)]
    columns = {"logits": single, "labels": LABELS + 1, "weight": [1.0, 2, 0, 1]}
    contents = read.read_predictions(write(**columns), first_label=1)
    assert contents.logits.dtype == np.float32
    np.testing.assert_array_equal(contents.logits, single)
    assert contents.labels.tolist() == LABELS.tolist()
    assert contents.weights.tolist() == [1, 2, 0, 1]
    options = [{"a": 0.25, "b": 0.75}, {"a": 0.2, "b": 0.3, "c": 0.5}]
    lists = [[*option.values()] for option in options]
    for given, label in ((options, ["b", "c"]), (lists, [1, 2])):
        contents = read.read_predictions(write(probabilities=given, label=label))
        np.testing.assert_array_equal(contents.logits, [[0.25, 0.75, np.nan], [0.2, 0.3, 0.5]])
        assert contents.labels.tolist() == [1, 2]
    words = pyarrow.array(names).dictionary_encode()
    assert read.read_predictions(write(label=words, **by_class)).labels.tolist() == [2, 0, 2, 1]
    refused(write(logits=[[1.0, 2], None], labels=[0, 1]), "row 2 of .* has logits 'None'")
    refused(write(label=[0, 1], logit_0=[1.0, None], logit_1=[1.0, 2]), "logit_0 .* row 2 has ''")
    refused(write(label=[0, 2], logit_0=[1.0, 3], logit_1=[1.0, 2]), "label 2 .* 2 classes 0 to 1")
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, "cannot be read as a file of predictions")


def choices(*values, **entries):
    """Write a sample of lm-evaluation-harness; newer versions write numbers, older ones text."""
    responses = [[value, False] for value in values]
    return {"filtered_resps": responses, "resps": [[each] for each in responses], **entries}


def samples_file(folder, *samples):
    path = folder / "samples_arc_2024-01-01.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def test_samples_of_lm_evaluation_harness(tmp_path):
    arguments = [["Question", " yes"], ["Question", " no"]]
    by_name = {
        f"gen_args_{k}": {"arg_0": "Question", "arg_1": text}
        for k, text in enumerate((" left", " right", " up"))
    }
    path = samples_file(
        tmp_path,
        choices(-3.5, -1.25, doc_id=2, target="no", arguments=arguments, filter="none"),
        choices("-0.5", "-2.0", "-4.25", doc_id=0, target="2", filtered_resps=None),
        choices(-1.0, -2.0, -0.25, doc_id=1, target="right", arguments=by_name, filter="none"),
        choices(-9.0, -9.0, -9.0, doc_id=1, target=0, filter="other"),
    )
    contents = read.read_predictions(str(path))
    expected = [[-0.5, -2.0, -4.25], [-1.0, -2.0, -0.25], [-3.5, -1.25, -np.inf]]
    np.testing.assert_array_equal(contents.values(), expected)
    assert contents.labels.tolist() == [2, 1, 1]
    filters, fewer = contents.notes
    assert fewer.endswith("rows of 2 to 3 options of their own.")
    assert filters.endswith("the filter none is read, and not other.")
    # Other questions may have fewer choices at most: a temperature needs no columns of its own.
    (tmp_path / "fit").mkdir()
    two = (choices(-0.75 * k, -1.0, doc_id=k, target=k % 2) for k in range(4))
    files = [str(path), str(samples_file(tmp_path / "fit", *two))]
    how = {"calibrate": "temperature", "resamples": 20, "metrics": ["nll"]}
    for k, first in enumerate(("3 examples of up to 3 options;", "4 examples in 2 classes;")):
        scored = report.score_files(predictions=[files[k]], fit_on=[files[1 - k]], **how)
        assert first in str(scored)


def test_a_file_and_a_folder_of_one_name_are_two_models(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a.npz", "b.npz", "b.csv", "a/other.npz", "report.csv"):
        (tmp_path / name).touch()
    assert read.models_in(tmp_path) == {
        "a": str(tmp_path / "a.npz"),
        "b": str(tmp_path / "b.csv"),
        "b.npz": str(tmp_path / "b.npz"),
        "a/other": str(tmp_path / "a" / "other.npz"),
    }


@pytest.mark.parametrize(("mark", "other"), ["\t,", ";,", ",;", ",\t", ";\t"])
@pytest.mark.parametrize("first", ["label", '"label"'])
def test_names_of_classes_may_contain_other_separators(tmp_path, first, mark, other):
    path = tmp_path / "run.csv"
    names = [f"tench{other} fish{other} eel", "dog"]
    cells = [[first, f'"{names[0]}"', names[1]], ["dog", "0.5", "2"]]
    path.write_text("\n".join(map(f"{mark} ".join, cells)))
    contents = read.read_predictions(str(path))
    assert (contents.class_names, contents.labels.tolist()) == (tuple(names), [1])
    if mark == "\t":  # tabs need no quotes
        path.write_text("\n".join(map(mark.join, cells)).replace('"', ""))
        assert read.read_predictions(str(path)).class_names == tuple(names)


def test_probabilities_in_whole_numbers_are_read(tmp_path):
    """They are percent where the sum of every row is 100, up to half a point a class."""
    path = tmp_path / "a.jsonl"
    for whole, rows in (
        (100, [[75, 26], [30, 70]]),
        (100, [[53, 20, 10, 10, 10, 0]]),
        (1, [[75, 27]]),
        (1, [[75, 25], [30, 60]]),
        (1, [[54, 20, 10, 10, 10, 0]]),
        (1, [[0, 1]]),
        *((sum(row), [row]) for row in ([0] * 999 + [1], [0] * 249 + [100])),
    ):
        written = [json.dumps({"label": len(p) - 1, "probabilities": p}) for p in rows]
        path.write_text("\n".join(written))
        np.testing.assert_allclose(read.read_predictions(str(path)).logits, np.divide(rows, whole))


def test_every_row_may_repeat_the_names_of_the_classes(tmp_path):
    row = {"logits": [0.5, 2.0], "label": "b", "class_names": ["a", "b"]}
    for count in (1, 2):
        (tmp_path / "a.jsonl").write_text("\n".join([json.dumps(row)] * count))
        contents = read.read_predictions(str(tmp_path / "a.jsonl"))
        assert (contents.class_names, contents.labels.tolist()) == (("a", "b"), [1] * count)


def test_answers_beside_a_confidence_may_be_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"answers": {"a": "Paris"}, "confidence": 0.5, "correct": 1}')
    assert read.read_predictions(str(path)).logits.tolist() == [0.5]
