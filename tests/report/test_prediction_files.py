"""Files of predictions: what is taken under which name, and what is refused in one sentence."""

import io
import itertools
import json
import os
import struct
import sys
import warnings
import zipfile

import numpy as np
import pytest

from calib_jax.report.reading import prediction_files, prediction_tables

LOGITS = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -3.0], [0.0, 4.0, 1.0], [2.0, 1.0, 0.0]])
LABELS = np.array([2, 0, 1, 1])


def csv_file(folder, *lines):
    path = folder / "run.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def npz_file(folder, **arrays):
    np.savez(folder / "run.npz", **{"logits": LOGITS, "labels": LABELS, **arrays})
    return str(folder / "run.npz")


def with_row(number, value):
    """Return the logits with one value in all columns of a row."""
    logits = LOGITS.copy()
    logits[number] = value
    return logits


def refused(name, message, **options):
    """Check that a file is refused, in a sentence that names it."""
    with pytest.raises((prediction_files.Unreadable, FileNotFoundError), match=message) as caught:
        prediction_files.read_predictions(str(name), **options)
    assert str(name).split(",")[0] in str(caught.value)


def test_every_kind_of_file_holds_the_same(tmp_path):
    name = npz_file(tmp_path, groups=np.array(["a", "b", "a", "a"]), weights=np.arange(4))
    np.save(tmp_path / "logits.npy", LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    lines = ["label,logit_0,logit_1,logit_2,group,weight"]
    for k in range(4):
        row = [LABELS[k], *LOGITS[k], "abaa"[k], k]
        lines.append(",".join(map(str, row)))
    pair = f"{tmp_path / 'logits.npy'},{tmp_path / 'labels.npy'}"
    for one in (name, pair, csv_file(tmp_path, *lines)):
        contents = prediction_files.read_predictions(one)
        np.testing.assert_array_equal(contents.labels, LABELS)
        np.testing.assert_array_equal(contents.logits, LOGITS)
        assert contents.notes == ()
        if one != pair:
            assert contents.weights.tolist() == [0, 1, 2, 3]
            assert contents.groups.tolist() == ["a", "b", "a", "a"]
    assert isinstance(prediction_files.read_predictions(pair).logits, np.memmap)


@pytest.mark.parametrize("spelling", ["weight", "weights", "Weight", "WEIGHTS"])
def test_singular_and_plural_mean_the_same(tmp_path, spelling):
    contents = prediction_files.read_predictions(npz_file(tmp_path, **{spelling: np.arange(4.0)}))
    assert contents.weights.tolist() == [0, 1, 2, 3]
    lines = [f"{spelling},Label,logit_0", "0.5,1,2.5", "2,0,1.0"]
    assert prediction_files.read_predictions(csv_file(tmp_path, *lines)).weights.tolist() == [
        0.5,
        2,
    ]
    both = npz_file(tmp_path, weights=np.ones(4), **{spelling.replace("s", ""): np.ones(4)})
    if spelling == "weight":
        refused(both, "has 'weights' and 'weight', which mean the same")


@pytest.mark.parametrize("spelling", ["cluster", "Clusters"])
def test_clusters_have_their_name_or_a_chosen_one(tmp_path, spelling):
    ids = np.array(["x", "y", "x", "y"])
    photo = np.arange(4)
    npz = npz_file(tmp_path, **{spelling: ids, "Photo": photo, "group": ids})
    lines = [f"label,logit_0,Photo,{spelling},group", "1,2.5,0,x,x", "0,1,1,y,y"]
    table = csv_file(tmp_path, *lines)
    for name, num_rows in ((npz, 4), (table, 2)):
        contents = prediction_files.read_predictions(name)
        assert contents.clusters.tolist() == ids[:num_rows].tolist()
        assert contents.notes[0].endswith("ignored: Photo.")
        contents = prediction_files.read_predictions(name, clusters="photo")
        assert [str(k) for k in contents.clusters] == [str(k) for k in photo[:num_rows]]
        assert contents.groups.tolist() == ids[:num_rows].tolist()
        assert contents.notes[0].endswith(f"ignored: {spelling}.")
        contents = prediction_files.read_predictions(
            name, clusters="groups"
        )  # an existing role changes
        assert (contents.clusters.tolist(), contents.groups) == (ids[:num_rows].tolist(), None)
        assert prediction_files.read_predictions(name, clusters="none").clusters is None
        refused(name, "clusters of .* cannot be its labels", clusters="label")


def test_what_is_ignored_is_named(tmp_path):
    contents = prediction_files.read_predictions(
        npz_file(tmp_path, features=np.ones(3), paths=np.ones(2))
    )
    assert contents.notes == (f"{tmp_path / 'run.npz'}: arrays ignored: features, paths.",)
    contents = prediction_files.read_predictions(
        csv_file(tmp_path, "path,label,logit_0,split", "a,1,2.5,test")
    )
    assert contents.notes == (f"{tmp_path / 'run.csv'}: columns ignored: path, split.",)


def test_an_array_that_nobody_needs_is_not_read(tmp_path):
    name = npz_file(tmp_path)
    with zipfile.ZipFile(name, "a") as file:
        file.writestr("features.npy", b"no array at all")
    assert len(prediction_files.read_predictions(name).labels) == 4


def test_classes_may_be_named(tmp_path):
    lines = ["id,cat,label,dog,bird,path", "7,0.5,dog,1.5,-2,a", "8,2.5,cat,0,1e-3,b"]
    contents = prediction_files.read_predictions(csv_file(tmp_path, *lines))
    np.testing.assert_array_equal(contents.logits, [[0.5, 1.5], [2.5, 0]])
    assert contents.labels.tolist() == [1, 0]
    classes, ignored, without_label = contents.notes
    assert classes.endswith("the classes are cat = 0, dog = 1.")
    assert "no label is bird: not scored. If all columns of numbers are classes" in without_label
    assert ignored.endswith("columns ignored: id, path.")
    # A prefix says which columns are meant; then labels may also be their numbers.
    for labels in (["dog", "cat"], ["1", "0.0"]):
        lines = ["year,logit_cat,label,logit_dog", f"1,0.5,{labels[0]},1.5", f"9,2,{labels[1]},0"]
        contents = prediction_files.read_predictions(csv_file(tmp_path, *lines))
        np.testing.assert_array_equal(contents.logits, [[0.5, 1.5], [2, 0]])
        assert contents.labels.tolist() == [1, 0]
    # A column that counts the lines is no class, whatever its name.
    lines = ["number,cat,label,dog", "7,0.5,dog,1.5", "8,2.5,cat,0"]
    assert prediction_files.read_predictions(csv_file(tmp_path, *lines)).logits.shape == (2, 2)
    refused(
        csv_file(tmp_path, "label,logit_cat,logit_dog", "fish,1,2"),
        "has 'fish', which is no column of a class: these are cat, dog",
    )
    others = csv_file(tmp_path, "pred_a,target,pred_b", "1,0,2")
    refused(others, "must have columns label, logit_0")
    refused(csv_file(tmp_path, "label,cat,dog", "1,1,2"), "must have columns label, logit_0")


def test_what_spreadsheets_write(tmp_path):
    lines = ["\ufeff", "Label,Logit_0 , LOGIT_1", "", "0.0,1.5,-2", " 1 ,0.5,3e0", ",,", "   ", ""]
    contents = prediction_files.read_predictions(csv_file(tmp_path, *lines))
    np.testing.assert_array_equal(contents.logits, [[1.5, -2], [0.5, 3]])
    assert contents.labels.tolist() == [0, 1]
    path = tmp_path / "run.csv"
    path.write_bytes(b'"label","logit_0"\r\n"1","0.5"\r\n')
    assert prediction_files.read_predictions(str(path)).logits.tolist() == [[0.5]]


def test_columns_are_ordered_by_their_number(tmp_path):
    head = ["label", *(f"logit_{k}" for k in reversed(range(11)))]
    row = ["0", *(str(float(k)) for k in reversed(range(11)))]
    contents = prediction_files.read_predictions(csv_file(tmp_path, ",".join(head), ",".join(row)))
    np.testing.assert_array_equal(contents.logits, [np.arange(11.0)])
    contents = prediction_files.read_predictions(csv_file(tmp_path, "1,label,0", "2.5,1,1.5"))
    np.testing.assert_array_equal(contents.logits, [[1.5, 2.5]])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("label,logit_0,logit_0", "has two columns 'logit_0'"),
        ("label,logit_0,logit_00", "columns logit_0 and logit_00, the same class"),
        ("label,logit_0,logit_7", "2 columns of classes up to 7, but no logit_1"),
        ("label,logit_-1,logit_0", "a column logit_-1 beside numbered ones"),
        ("label,logit_0,logit_dog", "a column logit_dog beside numbered ones"),
        ("label,logit_cat,logit_cat", "has two columns 'logit_cat'"),
        ("label,logit_1,logit_2", "from 1, logit_1"),
        ("label,logit_0,label", "has 'label' and 'label', which mean the same"),
        ("label,logit_0,Labels", "has 'label' and 'Labels', which mean the same"),
        ("logit_0,logit_1,logit_2", "has no column label; it has logit_0, .*: add the labels"),
        (
            "label,score,other",
            "must have columns label, logit_0, logit_1, ...; it has label, score",
        ),
    ],
)
def test_columns_that_are_no_classes_in_a_row(tmp_path, head, message):
    refused(csv_file(tmp_path, head, "0,1,0", "1,0,1"), message)


def test_labels_may_run_from_one(tmp_path):
    for kind in (np.uint8, np.int64, np.float32):
        name = npz_file(tmp_path, labels=(LABELS + 1).astype(kind))
        refused(name, "labels of .* run from 1 to 3: give --first_label=1")
        assert (
            prediction_files.read_predictions(name, first_label=1).labels.tolist()
            == LABELS.tolist()
        )
    refused(npz_file(tmp_path), r"label 0 .*\(example 1, .*classes 1 to 3", first_label=1)
    lines = ["label,logit_1,logit_2", "1,0.5,1.5", "2,2.5,0"]
    assert prediction_files.read_predictions(
        csv_file(tmp_path, *lines), first_label=1
    ).labels.tolist() == [0, 1]
    lines = ["label,cat,dog", "dog,0.5,1.5", "cat,2.5,0"]
    assert prediction_files.read_predictions(
        csv_file(tmp_path, *lines), first_label=1
    ).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "label", [3, -1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, 2**63, -(2**64), 10**30]
)
def test_labels_are_compared_before_they_are_narrowed(tmp_path, label):
    lines = ["label,logit_0,logit_1,logit_2", "0,1,2,3", f"{label},1,2,3"]
    refused(csv_file(tmp_path, *lines), f"label {label}[ ,]")
    # Of weight 0 it may be anything.
    lines = [f"{line},{weight}" for line, weight in zip(lines, ("weight", 1, 0), strict=True)]
    assert prediction_files.read_predictions(csv_file(tmp_path, *lines)).labels.tolist() == [0, -1]
    kind = np.int64 if -(2**63) <= label < 2**63 else np.uint64
    if label in (-(2**64), 10**30):
        return
    labels = np.array([2, 0, 1, label], kind)
    refused(npz_file(tmp_path, labels=labels), rf"label {label} .*\(example 3, counted from 0\)")
    contents = prediction_files.read_predictions(
        npz_file(tmp_path, labels=labels, weights=[1, 1, 1, 0])
    )
    assert contents.labels.tolist() == [2, 0, 1, -1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": LABELS[:3]}, r"labels of .* must have shape \(4,\), .* got \(3,\)"),
        ({"labels": LABELS[:, None]}, r"labels of .* must have shape \(4,\), .* got \(4, 1\)"),
        ({"labels": np.array(1)}, r"labels of .* must have shape \(4,\), .* got \(\)"),
        ({"labels": LABELS + 0.5}, "labels of .* must be integers, got float64"),
        ({"labels": np.array([1, 2, 1, np.inf])}, "labels of .* must be integers, got float64"),
        (
            {"labels": LABELS.astype(str)},
            "labels of .* are names, such as '2': add an array class_n",
        ),
        ({"logits": LABELS, "labels": LOGITS}, "logits of .* must be floating point, got int64"),
        ({"logits": LOGITS.astype(complex)}, "logits of .* must be floating point, got complex"),
        ({"logits": np.array(0.5)}, "logits of .* are one number"),
        (
            {"logits": with_row(1, np.nan)},
            r"1 example of .* has NaN or infinite .* number 1 \(counted",
        ),
        (
            {"logits": with_row(2, -np.inf)},
            "1 example of .* has NaN or infinite logits; the first is number 2",
        ),
        ({"weights": np.ones((4, 3))}, r"weights of .* must have shape \(4,\), .* got \(4, 3\)"),
        ({"weights": np.array(2.0)}, r"weights of .* must have shape \(4,\), .* got \(\)"),
        ({"weights": np.array(["1"] * 4)}, "weights of .* must be numbers, got <U1"),
        (
            {"weights": [1, 1, np.inf, 1]},
            "1 weight of .* is negative, infinite or NaN, such as inf",
        ),
        (
            {"weights": [1, np.nan, -1, 1]},
            "2 weights of .* are negative, infinite or NaN, such as nan",
        ),
        ({"weights": [1e38, 1e38, 1, 1]}, r"weights of .* sum to 2e\+38"),
        ({"weights": [1e308, 1e308, 1, 1]}, "weights of .* sum to inf"),
        ({"weights": np.zeros(4)}, "weights of .* sum to 0"),
        ({"groups": np.ones((4, 3))}, r"groups of .* must have shape \(4,\), .* got \(4, 3\)"),
        ({"groups": np.array("a")}, r"groups of .* must have shape \(4,\), .* got \(\)"),
        ({"clusters": np.arange(3)}, r"clusters of .* must have shape \(4,\), .* got \(3,\)"),
        ({"groups": np.array([{}] * 4)}, "holds pickled objects, which are never read"),
        ({"logits": LOGITS.astype(object)}, r"save numbers by \.astype\(float\), text by"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, message):
    refused(npz_file(tmp_path, **arrays), message)


def test_arrays_of_other_machines(tmp_path):
    for kind in (">f4", ">f8", np.longdouble, np.float16):
        name = npz_file(tmp_path, logits=LOGITS.astype(kind), labels=LABELS.astype(">i8"))
        contents = prediction_files.read_predictions(name)
        np.testing.assert_array_equal(contents.logits, LOGITS)
        assert contents.logits.dtype.isnative
        assert contents.logits.dtype.itemsize <= 8
        np.testing.assert_array_equal(contents.labels, LABELS)


def test_probabilities_are_read_where_they_are_wanted(tmp_path):
    np.savez(tmp_path / "p.npz", probabilities=LOGITS, labels=LABELS)
    refused(tmp_path / "p.npz", "no array 'logits' but 'probabilities': add --probabilities")
    contents = prediction_files.read_predictions(str(tmp_path / "p.npz"), probabilities=True)
    np.testing.assert_array_equal(contents.logits, LOGITS)
    name = csv_file(tmp_path, "label,probability_0,probability_1", "1,0.25,0.75")
    refused(name, "columns probability_0, probability_1: add --probabilities")
    assert prediction_files.read_predictions(name, probabilities=True).logits.tolist() == [
        [0.25, 0.75]
    ]
    name = csv_file(tmp_path, "label,logit_0,probability_1", "1,2.5,0.75")
    contents = prediction_files.read_predictions(name)
    assert contents.logits.tolist() == [[2.5]]
    assert contents.notes[0].endswith("columns ignored: probability_1.")
    assert prediction_files.read_predictions(name, probabilities=True).logits.tolist() == [[0.75]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no column label; it has none: add the labels"),
        (["label,logit_0"], "has no examples, only a header"),
        (["label,logit_0", "0,1.5", "1"], "line 3 of .* has 1 fields, not 2"),
        (["label,logit_0", "0,1.5", "", "1,x"], "column logit_0 of .*: line 4 has 'x'"),
        (["label,logit_0", "0,1_0"], "column logit_0 of .*: line 2 has '1_0'"),
        (["label,logit_0", "x,1.5"], "column label of .* must hold numbers, got 'x'"),
        (["label,logit_0", "0.5,1.5"], "column label of .* must hold numbers, got '0.5'"),
        (["label,logit_0", "nan,1.5"], "column label of .* must hold numbers, got 'nan'"),
        (["label,logit_0,weight", "0,1.5,heavy"], "column weight of .* must hold numbers"),
        (["label,logit_0,weight", "0,1.5,inf"], "1 weight of .* is negative, infinite or NaN"),
        (["label,logit_0", '0,"' + "1" * 200_000 + '"'], "field larger than field limit"),
        (["label,logit_0", "0,1\0"], "column logit_0 of .*: line 2 has '1.x00'"),
        (["label,\x1b[2J" + "a" * 100, "0,1"], r"it has label, \\x1b\[2Ja+\.\.\.\."),
    ],
)
def test_tables_that_are_none(tmp_path, lines, message):
    refused(csv_file(tmp_path, *lines), message)


def test_numbers_beyond_single_precision_are_infinite(tmp_path):
    np.savez(tmp_path / "run.npz", logits=np.array([[0, 1], [1e300, 0]]), labels=[0, 1])
    refused(tmp_path / "run.npz", "1 example of .* infinite logits; the first is number 1")


def test_a_table_is_text(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("label,logit_0\n0,1\n", encoding="utf-16")
    refused(path, "run.csv cannot be read .* it is not in UTF-8; save the file in this encoding")
    path.write_text("label,cat,Äffchen\n0,1,2\n", encoding="latin-1")
    refused(path, "it is not in UTF-8; save the file in this encoding")


def test_a_line_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_tables, "LINE_CHARACTERS", 1000)
    name = csv_file(tmp_path, "label,logit_0", "0," + "0" * 998)
    refused(name, "has a line of more than 1,000 characters")
    assert prediction_files.read_predictions(
        csv_file(tmp_path, "label,logit_0", "0," + "0" * 990)
    ).labels == [0]


def test_many_columns_take_linear_time(tmp_path):
    """Work is counted, not timed: twice the columns are less than three times the comparisons."""

    class Counted(str):
        count = 0

        def __eq__(self, other):
            Counted.count += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    counts = []
    for many in (1000, 2000):
        Counted.count = 0
        names = [Counted(f"logit_{k}") for k in range(many)]
        request = prediction_tables.Request(tmp_path)
        classes = prediction_tables._classes(request, names, [], ["0"] * many)
        assert classes.places == list(range(many))
        counts.append(Counted.count)
    assert counts[1] <= 3 * counts[0] + 10


def test_files_that_are_none(tmp_path):
    np.save(tmp_path / "logits.npy", LOGITS)
    refused(tmp_path / "absent.npz", "there is no file")
    refused(tmp_path / "logits.npy", "needs its labels: give LOGITS.npy,LABELS.npy")
    refused(f"{tmp_path / 'absent.npy'},{tmp_path / 'logits.npy'}", "there is no file .*absent")
    refused(
        tmp_path / "run.txt",
        r"must end in .npz, .csv, .tsv, .parquet or .jsonl, .* Inspect .* \.eval or \.json",
    )
    for ending in ("npz", "csv"):
        (tmp_path / f"folder.{ending}").mkdir()
        refused(tmp_path / f"folder.{ending}", "it is a folder")
        os.symlink(f"loop.{ending}", tmp_path / f"loop.{ending}")
        refused(tmp_path / f"loop.{ending}", "Too many levels of symbolic links")
    np.savez(tmp_path / "keys.npz", z=LOGITS, labels=LABELS)
    refused(tmp_path / "keys.npz", "has no array 'logits'; it has z, labels")
    np.savez(tmp_path / "other.npz", targets=LABELS, preds=LOGITS)
    refused(
        tmp_path / "other.npz",
        "has no array 'logits'; it has targets, preds.\nRename the arrays, for example: a ="
        r" numpy.load\('.*/other.npz'\); numpy.savez\('new.npz', logits=a\['preds'\],"
        r" labels=a\['targets'\]\)$",
    )
    refused(tmp_path / "keys.npz", r"\('new.npz', labels=a\['labels'\], logits=a\['z'\]\)$")
    np.savez(tmp_path / "alone.npz", logits=LOGITS)
    refused(tmp_path / "alone.npz", r"has no array 'labels'; it has logits\.$")
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 not an archive")
    refused(tmp_path / "damaged.npz", "cannot be read as a file of predictions")


def header(shape, dtype="<f8", version=1, length=None):
    """Write the header of an .npy file by hand."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BROKEN_HEADERS = {
    "giant": header((10**12,)) + bytes(32),
    "beyond_64_bits": header((2**70,)) + bytes(32),
    "negative": header((-4, 3)) + bytes(32),
    "long": header((4, 3), version=2, length=2**31) + bytes(96),
    "nested": header("(" * 5000) + bytes(32),
    "no_dtype": header((4, 3), dtype="<q9") + bytes(96),
    "empty": b"",
    "cut": saved(LOGITS)[:-5],
    "more": saved(LOGITS) + bytes(8),
    "version": header((4, 3), version=9) + bytes(96),
    "text": header((4, 3), dtype="|V8") + bytes(96),
}


@pytest.mark.parametrize("kind", BROKEN_HEADERS)
def test_headers_that_lie(tmp_path, kind):
    path = tmp_path / "run.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("logits.npy", BROKEN_HEADERS[kind])
        file.writestr("labels.npy", saved(LABELS))
    refused(path, "cannot be read as a file of predictions")
    (tmp_path / "logits.npy").write_bytes(BROKEN_HEADERS[kind])
    np.save(tmp_path / "labels.npy", LABELS)
    pair = f"{tmp_path / 'logits.npy'},{tmp_path / 'labels.npy'}"
    refused(pair, "cannot be read as a file of predictions")


def test_every_flipped_byte_is_a_sentence_or_the_same(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", logits=LOGITS, labels=LABELS)
    whole = (tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "run.npz"
    refusals = 0
    for place, bit in itertools.product(range(0, len(whole), 3), (0, 5)):
        content = bytearray(whole)
        content[place] ^= 1 << bit
        path.write_bytes(content)
        try:
            with warnings.catch_warnings(action="ignore"):  # two members of one name
                contents = prediction_files.read_predictions(str(path))
        except prediction_files.Unreadable as error:
            refusals += 1
            assert str(path) in str(error)  # noqa: PT017
        else:
            np.testing.assert_array_equal(contents.logits, LOGITS)
            np.testing.assert_array_equal(contents.labels, LABELS)
    assert refusals > 100


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
    contents = prediction_files.read_predictions(name)
    np.testing.assert_array_equal(contents.logits, LOGITS)
    assert contents.labels.tolist() == [2, 0, 2, 1]
    assert contents.groups.tolist() == list("abab")
    classes, ignored = contents.notes
    assert classes.endswith("the classes are dog = 0, cat = 1, bird = 2.")
    assert ignored.endswith("columns ignored: id, note.")
    contents = prediction_files.read_predictions(
        write(logits=LOGITS.tolist(), labels=LABELS + 1, weight=[1.0, 2, 0, 1], text=["x"] * 4),
        first_label=1,
    )
    np.testing.assert_array_equal(contents.logits, LOGITS)
    assert contents.labels.tolist() == LABELS.tolist()
    assert contents.weights.tolist() == [1, 2, 0, 1]
    assert contents.notes == (f"{path}: arrays ignored: text.",)
    refused(write(logits=[[1.0, 2], [1.0]], labels=[0, 1]), "logits has lists of different lengths")
    refused(write(logits=[[1.0, 2], [1.0], [1.0]], labels=[0, 1, 1]), "lists of different lengths")
    refused(write(logits=[[1.0, 2], None], labels=[0, 1]), "logits has 1 empty cells")
    refused(write(label=[0, 1], logit_0=[1.0, None], logit_1=[1.0, 2]), "logit_0 .* got 'None'")
    refused(write(label=[0, 2], logit_0=[1.0, 3], logit_1=[1.0, 2]), "label 2 .* 2 classes 0 to 1")
    refused(write(score=[0.5]), "has no column label; it has score: add the labels")
    path.write_bytes(path.read_bytes()[:-20])
    refused(path, "cannot be read as a file of predictions")


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "run.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r"run.parquet needs pyarrow: .* 'calib_jax\[parquet\]'"):
        prediction_files.read_predictions(str(tmp_path / "run.parquet"))


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
        choices("-0.5", "-2.0", "-4.25", doc_id=0, target="2", filter="none"),
        choices(-1.0, -2.0, -0.25, doc_id=1, target="right", arguments=by_name, filter="none"),
        choices(-9.0, -9.0, -9.0, doc_id=1, target=0, filter="other"),
    )
    contents = prediction_files.read_predictions(str(path))
    expected = [[-0.5, -2.0, -4.25], [-1.0, -2.0, -0.25], [-3.5, -1.25, -np.inf]]
    np.testing.assert_array_equal(contents.logits, expected)
    assert contents.labels.tolist() == [2, 1, 1]
    fewer, filters = contents.notes
    assert "1 of 3 questions have fewer than 3 choices" in fewer
    assert filters.endswith("the filter none is read, and not other.")


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"doc_id": 0, "target": "4", "filtered_resps": ["4"], "resps": [["4"]]}, "no log-likeli"),
        (choices(-1.0, target=0), "line 1 of .* has no log-likelihoods of choices"),
        ({"label": 0, "probability_0": 0.2}, "probabilities go into .csv, .parquet or .npz"),
        (choices(-1.0, -2.0, target=2), "target '2', which is none of its 2 choices"),
        (choices(-1.0, -2.0, target="maybe"), "target 'maybe', which is none of its 2 choices"),
        (["a"], "line 1 of .* is no sample"),
    ],
)
def test_samples_that_are_none(tmp_path, sample, message):
    refused(samples_file(tmp_path, sample), message)


def test_labels_of_samples_do_not_run_from_one(tmp_path):
    path = samples_file(tmp_path, choices(-1.0, -2.0, doc_id=0, target=1))
    refused(path, "first_label=1 is for files whose labels count from 1", first_label=1)


def test_samples_that_are_no_json(tmp_path):
    path = samples_file(tmp_path)
    refused(path, "has no samples")
    first = json.dumps(choices(-1.0, -2.0, doc_id=0, target=1))
    path.write_text(f'{first}\n\n{{"doc_id": 1')
    refused(path, r"line 3 of .*\.jsonl is no JSON object: Expecting .* at character 13\.")
    path.write_text('{"doc_id\n')
    refused(path, r"line 1 of .* is no JSON object: Invalid control character at character 9\.")


def test_the_folder_of_a_training_names_its_predictions(tmp_path):
    (tmp_path / "environment.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"is the folder of a training: give its predictions_test"):
        prediction_files.models_in(tmp_path)
    (tmp_path / "environment.jsonl").rename(tmp_path / "sweep.csv")
    with pytest.raises(ValueError, match=r"is the folder of a sweep: its report.md has the scores"):
        prediction_files.models_in(tmp_path)


def test_a_file_and_a_folder_of_one_name_are_two_models(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a.npz", "b.npz", "a/other.npz"):
        (tmp_path / name).touch()
    models = prediction_files.models_in(tmp_path)
    assert models == {
        "a": str(tmp_path / "a.npz"),
        "b": str(tmp_path / "b.npz"),
        "a/other": str(tmp_path / "a" / "other.npz"),
    }


def test_a_single_column_is_that_of_class_1(tmp_path):
    for head in ("probability", "probability_1", "Probability"):
        name = csv_file(tmp_path, f"label,{head}", "1,0.75", "0,0.25")
        contents = prediction_files.read_predictions(name, probabilities=True)
        assert contents.logits.tolist() == [[0.75], [0.25]]
        refused(name, f"has columns {head}: add --probabilities")
    name = csv_file(tmp_path, "label,logit", "1,2.5")
    contents = prediction_files.read_predictions(name)
    assert (contents.logits.tolist(), contents.notes) == ([[2.5]], ())
    name = csv_file(tmp_path, "label,probability_0", "1,0.75")
    refused(name, "has only probability_0, .*\nRename it to probability_1 if", probabilities=True)
    name = csv_file(tmp_path, "label,probability_2", "2,0.75")
    contents = prediction_files.read_predictions(name, probabilities=True, first_label=1)
    assert contents.labels.tolist() == [1]
    name = csv_file(tmp_path, "label,probability_1", "2,0.75")
    refused(name, "Rename it to probability_2", probabilities=True, first_label=1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("cat,dog", "1,2"), "has no column label; it has cat, dog: add the labels."),
        (("label,cat,dog", "fish,1,2"), "column label of .* has 'fish', .*: these are cat, dog"),
        ((",label,a,b", "0,1,1,2"), "Rename a, b to logit_0, logit_1, or to probability_0, ..."),
        (("label|logit_0", "1|2"), r"it has label\|logit_0: separate columns by commas, tabs or"),
        (("label logit_0", "1 2"), "it has label logit_0: separate columns by commas, tabs or"),
        (("1,2.5,0", "0,1,2"), "it has 1, 2.5, 0: write names into the first line, .* label,logit"),
        (("label;logit_0", "1;2,5"), "line 2 has '2,5': write decimals with a point"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path, lines, message):
    refused(csv_file(tmp_path, *lines), message)


def test_columns_of_probabilities_are_not_renamed_to_logits(tmp_path):
    name = csv_file(tmp_path, "label,p_0,p_1", "1,0.2,0.8")
    refused(
        name,
        r"(?s)columns label, probability_0, .*Rename p_0, p_1 to probability_0, probability_1\.$",
        probabilities=True,
    )
    name = csv_file(tmp_path, "label,p", "1,0.2")
    refused(name, r"Rename p to probability_1\.$", probabilities=True)


def test_a_single_column_with_a_name_is_that_of_the_second_class(tmp_path):
    for labels in (("1", "0"), ("cat", "cat")):
        name = csv_file(tmp_path, "label,logit_cat", *(f"{label},2.5" for label in labels))
        contents = prediction_files.read_predictions(name)
        assert contents.labels.tolist() == [1, int(labels[1] == "cat")]
        assert contents.notes == (f"{name}: the only column is that of the class cat = 1.",)
    refused(csv_file(tmp_path, "label,logit_cat", "dog,2.5"), "has 'dog', which is no column")


@pytest.mark.parametrize("mark", ["\t", ";", ","])
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_tabs_and_semicolons_separate_columns_too(tmp_path, mark, ending):
    path = tmp_path / f"run.{ending}"
    path.write_text("\nlabel,logit_0,logit_1\n1,2.5,0\n".replace(",", mark))
    contents = prediction_files.read_predictions(str(path))
    assert (contents.logits.tolist(), contents.labels.tolist()) == ([[2.5, 0]], [1])


@pytest.mark.parametrize(("mark", "other"), ["\t,", ";,", ",;", ",\t", ";\t"])
@pytest.mark.parametrize("first", ["label", '"label"'])
def test_names_of_classes_may_contain_other_separators(tmp_path, first, mark, other):
    path = tmp_path / "run.csv"
    names = [f"tench{other} fish{other} eel", "dog"]
    cells = [[first, f'"{names[0]}"', names[1]], ["dog", "0.5", "2"]]
    path.write_text("\n".join(map(mark.join, cells)))
    contents = prediction_files.read_predictions(str(path))
    assert (contents.class_names, contents.labels.tolist()) == (tuple(names), [1])
    if mark == "\t":  # tabs need no quotes
        path.write_text("\n".join(map(mark.join, cells)).replace('"', ""))
        assert prediction_files.read_predictions(str(path)).class_names == tuple(names)


def test_a_column_without_a_name_is_called_so(tmp_path):
    name = csv_file(tmp_path, ",label,logit_0,logit_1", "7,1,2.5,0")
    (note,) = prediction_files.read_predictions(name).notes
    assert note.endswith("columns ignored: one without a name.")


def test_a_damaged_column_of_parquet_is_named(tmp_path, monkeypatch):
    """A wrong number in the header of a page, which fuzzing found, gives an empty column."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path, whole = tmp_path / "run.parquet", parquet.ParquetFile.read
    columns = {"logit_0": [0.5, 1.5], "logit_1": [1.5, 0.5], "label": [0, 1]}
    parquet.write_table(pyarrow.table(columns), path)

    def read(file, columns):
        return whole(file, columns=columns).slice(0, 0 if columns == ["logit_1"] else 2)

    monkeypatch.setattr(parquet.ParquetFile, "read", read)
    with pytest.raises(ValueError, match=r"run\.parquet .*logit_1 has 0 of 2 values"):
        prediction_files.read_predictions(str(path))


def test_columns_of_parquet_are_different_and_whole(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "run.parquet"
    columns = [pyarrow.array([1] * 500), *3 * [pyarrow.array(np.arange(500) / 7)]]
    names = ["label", "logit_0", "logit_1", "logit_1"]
    parquet.write_table(pyarrow.table(columns, names=names), path)
    refused(path, "has two columns 'logit_1': keep one of them")
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    parquet.write_table(pyarrow.table(columns[:3], names=names[:3]), path, **options)
    content = bytearray(path.read_bytes())
    place = content.index(np.float64(300 / 7).tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    refused(path, "cannot be read as a file of predictions: .*(CRC|checksum)")


def test_samples_that_are_ambiguous(tmp_path):
    again = [choices(-1.0, -2.0, doc_id=3, target="0"), choices(-2.0, -1.0, doc_id=3, target="0")]
    refused(samples_file(tmp_path, *again), r"line 2 of .* the question of line 1 again \(doc_id 3")
    again = [choices(-1.0, -2.0, doc_id="q3", target=str(k)) for k in range(2)]
    refused(samples_file(tmp_path, *again), r"the question of line 1 again \(doc_id q3\)")
    several = [choices(-1.0, -2.0, doc_id=3, target="0", filter=name) for name in ("a", "b")]
    assert len(prediction_files.read_predictions(str(samples_file(tmp_path, *several))).labels) == 1
    equal = [["Q", " yes"], ["Q", " yes"]]
    path = samples_file(tmp_path, choices(-1.0, -2.0, doc_id=0, target="yes", arguments=equal))
    refused(path, "target 'yes', the text of 2 of its choices")
    digits = [["Q", " 1"], ["Q", " 2"], ["Q", " 3"]]
    question = choices(-1.0, -2.0, -3.0, doc_id=0, target="2", arguments=digits)
    contents = prediction_files.read_predictions(str(samples_file(tmp_path, question)))
    assert contents.labels.tolist() == [2]
    assert "1 target is the number of a choice and the text of another" in contents.notes[-1]
    whole = samples_file(tmp_path, question | {"target": 2})  # a number, not a text
    assert prediction_files.read_predictions(str(whole)).notes == ()
    refused(
        samples_file(tmp_path, question | {"target": "3"}),
        "target '3', the text of one of its choices and the number of none",
    )
    counted = [["Q", " 0"], ["Q", " 1"]]
    question = choices(-1.0, -2.0, doc_id=0, target="1", arguments=counted)
    assert prediction_files.read_predictions(str(samples_file(tmp_path, question))).notes == ()
