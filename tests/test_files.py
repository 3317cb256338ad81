"""Files from others: damaged ones are named, and nothing in them is run.

Damaged data sets: tests/data/test_refusals.py; predictions and answers: tests/report.
"""

import pickle

import numpy as np
import pytest

from calib_jax import calibrators, data, models, report, train
from tests.data import tiny

RANDOM = np.random.default_rng(0)
LOGITS, LABELS = RANDOM.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 3


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
    calibrators.save(folder / "t.npz", "matrix", calibrators.matrix.fit(LOGITS, LABELS))
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
