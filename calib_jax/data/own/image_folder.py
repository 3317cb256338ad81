"""Images of the user's own: a folder for each class, or a CSV file of files and labels."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.core.texts import one_line
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.images.augmentation import compose, on_inputs, random_crop, random_flip
from calib_jax.data.images.image_files import decode_all, eight_bits, opened
from calib_jax.data.own.arrays import assembled, held_out
from calib_jax.data.own.tables import PARTS, Row, class_names, numbered, parts_of, rows_of

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_ADVICE = "replace this file or remove it"
_HOW = "Put the images into a folder for each class, FOLDER/CLASS/IMAGE.png"
_LONGEST = 1 << 28  # limit on the bytes of an image
_MODES = {1: "L", 3: "RGB"}


@register("own_images", About(title="Images of your own, in a folder", licence="your own"))
def from_folder(
    folder: str = "own_images",
    *,
    data_dir: str | None = None,
    csv_file: str = "",
    height: int = 32,
    width: int = 32,
    channels: int = 3,
    classes: Sequence[str | int] = (),
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
    augment: str = "none",
) -> Dataset:
    """Load the images of a folder that has one folder for each class.

        photos/cat/1.png, photos/cat/2.jpg, photos/dog/1.png, ...

    Classes are numbered in alphabetic order, or by value if all are numbers. Folders `train`, `val`
    and `test`, each with a folder for each class, are the parts; a part without a folder is held
    out of `train`. Images are turned as their EXIF data say, cut to the shape of the result, in the
    middle, and resized; transparency is left out. They are kept in memory.

    Args:
      folder: the folder of the images, as a path or in the folder of the data sets.
      data_dir: the folder of the data sets, see `cifar10`.
      csv_file: the name of a CSV file in the folder with columns `file` (a path in the folder),
        `label` and optionally `split` (train, val or test); it replaces the folders of classes.
        It lists each image once.
      height, width: the size of the result, in pixels.
      channels: 3 for colour, 1 for grey.
      classes: the names of the classes in the order of their numbers; others are an error.
      validation, test: the fraction of each class that is held out, at least one image, unless the
        part is given.
      seed: seed of the split.
      augment: "none"; "flip" mirrors half of the training images; "crop_and_flip" also pads them by
        an eighth of their height, and cuts at random.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(8):
    ...         place = pathlib.Path(folder, "cat" if number % 2 else "dog")
    ...         place.mkdir(exist_ok=True)
    ...         Image.new("RGB", (9, 7)).save(place / f"{number}.png")
    ...     pets = from_folder(folder, height=4, width=4)
    >>> pets.class_names, pets.train.inputs.shape, len(pets.test)
    (('cat', 'dog'), (4, 4, 4, 3), 2)
    """
    checks.one_of("augment", augment, ("none", "flip", "crop_and_flip"))
    for name, value in (("height", height), ("width", width)):
        checks.whole(name, value)
    if channels not in _MODES:
        raise ValueError(f"channels must be 3 for colour or 1 for grey, got {channels}.")
    place = files.given(folder, "", data_dir)
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place}.\n{_HOW}, or set the option folder.")
    images = list(_listed_in_csv(place, csv_file) if csv_file else _listed(place))
    names = class_names([image.label for image in images], classes, place)
    labels = numbered([image.label for image in images], names)
    fractions = {"validation": validation, "test": test}
    rows, drawn = parts_of([image.part for image in images], labels, names, fractions, seed)
    shape = (height, width, channels)
    pixels = decode_all(
        len(images), shape, lambda row: _pixels(images[row].value, shape), place.name
    )
    sources = {part: InMemory(pixels[index], labels[index]) for part, index in rows.items()}
    flip, crop = random_flip(), random_crop(padding=max(1, height // 8))
    of_images = {"flip": on_inputs(flip), "crop_and_flip": on_inputs(compose(crop, flip))}
    return assembled(
        "own_images",
        names,
        sources,
        f"Images of {place.name}, {height} x {width}, {held_out(drawn, seed)}",
        augment=of_images.get(augment),
    )


def _listed(place: pathlib.Path) -> Iterator[Row]:
    """List the images of a folder of classes, or of the folders train, val and test."""
    folders = _folders(place)
    parts = {path: PARTS.get(path.name.lower(), "") for path in folders}
    # A folder with a part's name may be a class, such as trains beside buses, but has images then.
    of_parts = [path for path, part in parts.items() if part and _folders(path)]
    if not of_parts:
        yield from _of_classes(place)
        return
    if len(of_parts) < len(folders) or "train" not in parts.values():
        raise ValueError(
            f"{place} has folders of parts, such as {of_parts[0].name}: there must be train, and"
            " beside it val and test alone."
        )
    for path, part in parts.items():
        for image in _of_classes(path):
            yield image._replace(part=part)


def _of_classes(place: pathlib.Path) -> Iterator[Row]:
    """List the images of a folder with one folder for each class."""
    folders = _folders(place)
    if not folders:
        raise ValueError(f"{place} has no folders.\n{_HOW}, or name a CSV file (csv_file).")
    for folder in folders:
        images = [path for path in sorted(folder.rglob("*")) if _is_image(path, folder)]
        if not images:
            raise ValueError(
                f"the class {folder} has no images: add some, or remove the folder.\nImages end in"
                f" {', '.join(ENDINGS)}."
            )
        yield from (Row(path, folder.name) for path in images)


def _is_image(path: pathlib.Path, folder: pathlib.Path) -> bool:
    """Check that a path is an image and not hidden, unlike copies by notebooks and macOS."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in ENDINGS and not hidden and path.is_file()


def _folders(place: pathlib.Path) -> list[pathlib.Path]:
    """List the folders in a folder, without hidden ones and __MACOSX."""
    hidden = (".", "__")
    return sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith(hidden))


def _listed_in_csv(place: pathlib.Path, name: str) -> Iterator[Row]:
    """List the images of a CSV file with columns file, label and optionally split."""
    first: dict[pathlib.Path, int] = {}
    for number, row in enumerate(rows_of(place / name, "file"), start=1):
        where = f"row {number} of {place / name} names {one_line(row.value)}"
        image = place / row.value
        with reading.guard(where, "a path"):  # too long, or with a NUL
            again, exists = first.setdefault(image.resolve(), number), image.is_file()
        if again != number:
            raise reading.Unreadable(f"{where} again (row {again}): list each image once.")
        if not exists:
            raise FileNotFoundError(f"{where}, which does not exist; paths start in {place}.")
        yield row._replace(value=image)


def _pixels(path: pathlib.Path, shape: tuple[int, int, int]) -> Any:
    """Decode an image, cut it to the proportions of the shape, and resize it."""
    from PIL import Image, ImageOps

    height, width, channels = shape
    coded = reading.content(path, "an image", _ADVICE, at_most=_LONGEST)
    with reading.guard(path, "an image", _ADVICE, library=True):
        with opened(coded, FORMATS) as image:
            turned = eight_bits(ImageOps.exif_transpose(image), _MODES[channels])
        fitted = ImageOps.fit(turned, (width, height), Image.Resampling.BILINEAR)
        return np.asarray(fitted).reshape(shape)
