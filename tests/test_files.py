"""Files from others: damaged ones are named, nothing in them is run; numbers that are too large.

Damaged data sets: tests/data/test_refusals.py; predictions and answers: tests/report.
"""

import pickle

import jax
import numpy as np
import optax
import pytest

from calib_jax import calibrators, data, inference, losses, metrics, models, report, train
from tests.data import tiny

LOGITS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = np.arange(40) % 3
KEY = jax.random.key(0)


def weights(folder, suffix):
    models.write_weights(folder / f"w.{suffix}", {"a": LOGITS, "b": LABELS})
    return folder / f"w.{suffix}"


def predictions(folder, suffix):
    path = folder / f"p.{suffix}"
    if suffix == "npz":
        np.savez_compressed(path, logits=LOGITS, labels=LABELS)
    else:
        rows = [f"{y}," + ",".join(map(str, z)) for y, z in zip(LABELS, LOGITS, strict=True)]
        path.write_text("\n".join(["label,logit_0,logit_1,logit_2", *rows]) + "\n")
    return path


def calibrator(folder):
    calibrators.save(folder / "t.npz", "temperature", calibrators.temperature.fit(LOGITS, LABELS))
    return folder / "t.npz"


def block(folder):
    train.write_blocks([(LOGITS, LABELS, np.ones(20))], folder / "blocks")
    return folder / "blocks" / "block_00000.npz"


def word_vectors(folder):
    data.write_vectors(folder / "vectors.txt", {"the": LOGITS[0], "a": LOGITS[1]})
    return folder / "vectors.txt"


def subwords(folder):
    data.Subwords.of(tiny.sentences(9)[0], size=40).write(folder / "subwords.txt")
    return folder / "subwords.txt"


# Each format: its writer and its reader.
FORMATS = {
    "weights.npz": (lambda f: weights(f, "npz"), models.read_weights),
    "weights.safetensors": (lambda f: weights(f, "safetensors"), models.read_weights),
    "predictions.npz": (lambda f: predictions(f, "npz"), lambda p: report.read_predictions(str(p))),
    "predictions.csv": (lambda f: predictions(f, "csv"), lambda p: report.read_predictions(str(p))),
    "calibrator": (calibrator, calibrators.load),
    "block of logits": (block, lambda p: list(train.read_blocks(p.parent))),
    "word vectors": (word_vectors, lambda p: data.read_vectors(p, ["the"])),
    "subwords": (subwords, data.Subwords.read),
}


class Trap:
    """An object whose unpickling is detected."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_named_and_never_unpickled(name, tmp_path):
    make, read = FORMATS[name]
    path = make(tmp_path)
    whole = path.read_bytes()
    read(path)
    cut = [whole[: len(whole) // 3]] if path.suffix in (".npz", ".safetensors") else []
    for content in (*cut, pickle.dumps(Trap()), b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name) as caught:
            read(path)
        assert len(str(caught.value)) < 1000
        assert str(caught.value).isprintable() or "\n" in str(caught.value)


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.array([Trap()]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"w\.npz .* pickled objects, which are never read"):
        models.read_weights(tmp_path / "w.npz")


MANY = 100_000_000


def test_metrics_with_too_many_bins():
    for name, metric in metrics.catalogue().items():
        if "num_bins" in metric.defaults():
            with pytest.raises(ValueError, match=r"num_bins must lie in \[1, 100000\], got 10{8}"):
                metrics.named(name, num_bins=MANY)(LOGITS, LABELS)


@pytest.mark.parametrize(
    "call",
    [
        lambda: losses.objective("adafocal", num_bins=MANY),
        lambda: calibrators.histogram.fit(LOGITS, LABELS, num_bins=MANY),
        lambda: inference.compare_calibration(LOGITS, LOGITS, LABELS, num_bins=MANY),
        lambda: inference.compare_ece(LOGITS, LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.group_errors(LOGITS, LABELS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.class_errors(LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.calibration_test("ece", LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: inference.calibration_test("squared_error", LOGITS, LABELS, key=KEY, num_bins=MANY),
        lambda: report.score(LOGITS, LABELS, num_bins=MANY),
    ],
)
def test_functions_with_too_many_bins(call):
    with pytest.raises(ValueError, match=r"num_bins .*100000000|100000000 bins"):
        call()


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_labels_that_number_no_classes(dtype):
    labels = LABELS.astype(dtype)
    labels[3] = 10**9
    message = r"the largest label must lie in \[0, 999999\], got 1000000000"
    with pytest.raises(ValueError, match=message):
        data.from_arrays(LOGITS, labels)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_unsigned_labels_are_those_of_integers(dtype):
    actual = data.from_arrays(LOGITS, LABELS.astype(dtype))
    expected = data.from_arrays(LOGITS, LABELS)
    assert actual.class_names == expected.class_names == ("0", "1", "2")
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(
            getattr(actual, part).labels, getattr(expected, part).labels, err_msg=part
        )


@pytest.mark.parametrize("seed", [2**32, 2**32 + 1, 2**64, -1])
def test_seeds_beyond_32_bits(seed):
    """The keys of 1 and 2^32 + 1 would be equal."""
    objective = losses.objective("focal")
    for call in (
        lambda: report.score(LOGITS, LABELS, seed=seed),
        lambda: report.out_of_distribution(LOGITS, {"a": LOGITS}, seed=seed),
        lambda: train.Plan(num_epochs=1, batch_size=2, seed=seed),
        lambda: train.create({"params": {}}, objective, optax.sgd(0.1), 3, seed),
        lambda: data.from_arrays(LOGITS, LABELS, seed=seed),
        lambda: data.split(40, seed=seed),
    ):
        with pytest.raises((ValueError, TypeError), match="seed must be"):
            call()
