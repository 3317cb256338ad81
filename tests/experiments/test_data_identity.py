"""A run neither resumes with other data than it was trained on, nor is evaluated on them."""

import json
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from calib_jax import data
from calib_jax.core.examples import Examples, InMemory
from calib_jax.core.files import reading
from calib_jax.train.folder import lock, source_identity
from experiments.running import building, data_identity
from tests.experiments.processes import finish, refused
from tests.experiments.test_building import config_of

CLASSES = ("ant", "bee", "cat")


def add_images(folder, classes, numbers):
    """Write images of which each has a brightness of its own."""
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            level = (50 * place + 7 * number) % 251
            Image.new("RGB", (8, 8), (level, level, level)).save(folder / name / f"{number:02}.png")


@pytest.fixture
def photos(tmp_path):
    add_images(tmp_path / "photos", CLASSES, range(20))
    return tmp_path / "photos"


def config_for(photos, **options):
    config = config_of("own_images")
    config.model.name = "mlp"
    config.data.options.update({"folder": str(photos), "height": 8, "width": 8, **options})
    return config


def dataset_of(config):
    return building.data_set(config.data.name, config.data.options)


def identity_of(photos):
    return data_identity.of(dataset_of(config_for(photos)))


def started(folder, config):
    """Keep the identity of a run, and write what its first checkpoint would leave."""
    data_identity.keep([folder], config, dataset_of(config))
    (folder / "config.json").write_text(config.to_json())
    (folder / "checkpoints" / "2").mkdir(parents=True)


def arguments(binary, photos, folder):
    if binary == "evaluate":
        return binary, f"--workdir={folder}", "--resamples=20", "--calibrate="
    flags = {
        "data.options.folder": photos,
        "data.options.height": 8,
        "data.options.width": 8,
        "model.name": "mlp",
        "num_epochs": 1,
        "num_bins": 2,
    }
    named = ["--losses=focal", "--resamples=100"] if binary == "sweep" else ["--quiet"]
    given = [f"--config.{key}={value}" for key, value in flags.items()]
    return binary, "--config=configs/own_images.py", f"--workdir={folder}", *named, *given


GROWN = "was trained on 42 training examples, and the data set has 48 now: restore the data, or"


def test_images_added_to_a_folder_are_refused_by_training_and_evaluation(tmp_path, photos):
    folder = tmp_path / "run"
    train, evaluate = (arguments(binary, photos, folder) for binary in ("train", "evaluate"))
    finish(*train)
    before = (folder / "data.json").read_bytes()
    parts = json.loads(before)["parts"]
    assert [parts[part]["examples"] for part in ("train", "validation", "test")] == [42, 9, 9]
    finish(*evaluate)  # unchanged data
    add_images(photos, CLASSES, (20, 21))
    for command in (train, evaluate):
        assert refused(*command) == f"error: {folder} {GROWN} train anew in another folder.\n"
    assert (folder / "data.json").read_bytes() == before
    (folder / "data.json").unlink()  # the way out that the error names
    for command in (evaluate, train):
        finish(*command)
        assert (folder / "data.json").exists() == (command is train)


@pytest.mark.slow
def test_images_added_to_a_folder_are_refused_by_a_sweep(tmp_path, photos):
    sweep = arguments("sweep", photos, tmp_path / "sweep")
    for more in ((), ("--criterion=nll,ece",)):
        finish(*sweep, *more)
    add_images(photos, CLASSES, (20, 21))
    output = refused(*sweep)
    assert GROWN in output
    assert str(tmp_path / "sweep" / "runs" / "focal" / "1") in output


def another_class(photos):
    (photos / "bee").rename(photos / "dog")


def more_classes(photos):
    add_images(photos, ("dog",), range(20))


def another_order(photos):
    for path in sorted((photos / "bee").iterdir()):
        path.rename(path.with_name(f"{99 - int(path.stem)}.png"))


def one_moved(photos):
    (photos / "bee" / "03.png").rename(photos / "cat" / "99.png")
    (photos / "cat" / "03.png").rename(photos / "bee" / "99.png")


def another_count(photos):
    for number in range(4):
        (photos / "bee" / f"{number:02}.png").rename(photos / "cat" / f"{number + 50}.png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_class, "with 'bee' as the class 1, which is 'cat' now"),
        (more_classes, "on 3 classes, and the data set has 4 now"),
        (another_order, "with other training examples of the same labels than the data set has"),
        (one_moved, "with other training examples of the same labels than the data set has"),
        (another_count, "with other labels of the training examples than the data set has now"),
    ],
)
def test_changes_of_a_folder_of_images(tmp_path, photos, change, message):
    folder, config = tmp_path / "run", config_for(photos)
    started(folder, config)
    change(photos)
    with pytest.raises(ValueError, match=message):
        data_identity.check(folder, identity_of(photos))
    with pytest.raises(ValueError, match=message):
        data_identity.keep([folder], config, dataset_of(config))


def test_data_that_moved_or_were_written_anew_are_the_same(tmp_path, photos):
    started(tmp_path / "run", config_for(photos))
    shutil.copytree(photos, tmp_path / "there")  # with other times
    for path in (tmp_path / "there").rglob("*.png"):
        pixels = np.asarray(Image.open(path)).copy()
        pixels[::2] += 1
        Image.fromarray(pixels).save(path)  # as another decoder rounds
    data_identity.check(tmp_path / "run", identity_of(tmp_path / "there"))


def test_all_folders_of_several_seeds_are_checked_before_one_is_written(tmp_path, photos):
    folders, config = [tmp_path / "seed_1", tmp_path / "seed_2"], config_for(photos)
    started(folders[1], config)
    add_images(photos, CLASSES, (20,))
    with pytest.raises(ValueError, match="seed_2 was trained on 42 training examples"):
        data_identity.keep(folders, config, dataset_of(config))
    assert not folders[0].exists()


def test_another_config_is_left_to_the_check_of_configs(tmp_path, photos):
    folder = tmp_path / "run"
    started(folder, config_for(photos))
    other = config_for(photos, seed=1)
    for before in ((folder / "data.json").read_text(), None):
        if before is None:
            (folder / "data.json").unlink()
        data_identity.keep([folder], other, dataset_of(other))
        assert not before or (folder / "data.json").read_text() == before
    assert not (folder / "data.json").exists()
    (folder / "config.json").unlink()  # training restores it from the checkpoint
    data_identity.keep([folder], other, dataset_of(other))
    assert not (folder / "data.json").exists()


def test_a_run_without_a_checkpoint_starts_with_the_data_of_today(tmp_path, photos):
    folder, config = tmp_path / "run", config_for(photos)
    data_identity.keep([folder], config, dataset_of(config))
    add_images(photos, CLASSES, (20,))
    with lock.only_one(folder):  # another process trains there
        data_identity.keep([folder], config, dataset_of(config))
        assert data_identity.read(folder) != identity_of(photos)
    data_identity.keep([folder], config, dataset_of(config))
    assert data_identity.read(folder) == identity_of(photos)


def test_only_process_0_writes(tmp_path, photos, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    config = config_for(photos)
    data_identity.keep([tmp_path / "run"], config, dataset_of(config))
    assert not (tmp_path / "run").exists()


PART = {"examples": 3, "labels": None, "input_means": None}
PARTS = {"train": PART, "validation": PART, "test": PART}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        json.dumps({"parts": PARTS, "class_names": [1, 2]}),
        json.dumps({"parts": {"train": PART}, "class_names": ["a", "b"]}),
        json.dumps({"parts": PARTS | {"test": PART | {"examples": "3"}}, "class_names": None}),
        json.dumps({"parts": PARTS | {"test": PART | {"input_means": 3}}, "class_names": None}),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, content):
    (tmp_path / "data.json").write_text(content)
    dataset = data.named("digits", training_size=20)
    message = r"data\.json cannot be read as the identity of a data set: .*; remove it if the data"
    with pytest.raises(reading.Unreadable, match=message):
        data_identity.check(tmp_path, data_identity.of(dataset))
    with pytest.raises(reading.Unreadable, match=message):  # it may be a file of another program
        data_identity.keep([tmp_path], config_of("digits"), dataset)
    assert (tmp_path / "data.json").read_text() == content


def mirrored(inputs):
    return inputs[:, :, ::-1]


def upside_down(inputs):
    return inputs[:, ::-1, ::-1]


def turned(inputs):
    return np.rot90(inputs, axes=(1, 2))


def recoloured(inputs):
    return inputs[..., ::-1]


def shuffled(inputs):
    order = np.random.default_rng(0).permutation(np.prod(inputs.shape[1:]))
    return inputs.reshape(len(inputs), -1)[:, order].reshape(inputs.shape)


def ordered(inputs):
    return np.sort(inputs, axis=1)


def one_swapped(inputs):
    """The first two words of one sentence in ten."""
    changed = inputs.copy()
    changed[::10, [0, 1]] = changed[::10, [1, 0]]
    return changed


def photographs(levels, dtype=np.uint8, size=60):
    """Smooth random images, as photographs are, with values in 0, ..., levels."""
    coarse = np.random.default_rng(0).random((size, 4, 4, 3))
    return np.rint(levels * coarse.repeat(8, axis=1).repeat(8, axis=2)).astype(dtype)


SENTENCES = np.random.default_rng(1).integers(0, 5000, (400, 12), dtype=np.int32)


@pytest.mark.parametrize(
    ("inputs", "change"),
    [
        *(
            (inputs, change)
            for inputs in (photographs(255), photographs(40), photographs(16), photographs(1))
            for change in (mirrored, upside_down, turned, recoloured, shuffled)
        ),
        (photographs(900, np.int32), mirrored),
        *((SENTENCES, change) for change in (ordered, shuffled, one_swapped)),
        (SENTENCES[:, :2], ordered),
    ],
)
def test_the_same_values_in_another_place_are_other_data(tmp_path, inputs, change):
    labels = np.arange(len(inputs)) % 2
    data_identity._write(tmp_path, parts_of(InMemory(inputs, labels)))
    data_identity.check(tmp_path, parts_of(InMemory(inputs.copy(), labels)))
    with pytest.raises(ValueError, match="with other training examples of the same labels"):
        data_identity.check(tmp_path, parts_of(InMemory(change(inputs), labels)))


def test_pixels_that_another_decoder_rounds_are_the_same(tmp_path):
    inputs, labels = photographs(250), np.arange(60) % 2
    data_identity._write(tmp_path, parts_of(InMemory(inputs, labels)))
    errors = np.rint(np.random.default_rng(2).normal(0, 2, inputs.shape)) + (inputs > 99)
    decoded = np.clip(inputs + errors, 0, 255).astype(np.uint8)
    assert np.abs(decoded.astype(int) - inputs).max() > 5
    data_identity.check(tmp_path, parts_of(InMemory(decoded, labels)))


class Stream:
    """A source that is read from a disk, and counts the examples that are read."""

    def __init__(self, inputs, labels=(0, 1, 0, 1), views=False):
        self.inputs, self.of, self.views, self.count = inputs, np.array(labels), views, 0

    def __len__(self):
        return len(self.of)

    def __getitem__(self, index):
        self.count += len(index)
        inputs = self.inputs[index]
        return Examples(inputs + self.count if self.views else inputs, self.of[index])


def parts_of(source, **options):
    parts = dict.fromkeys(("train", "validation", "test"), source)
    of_data = {"name": "mine", "class_names": ("a", "b"), "description": "", **options}
    return data_identity.of(data.Dataset(**parts, **of_data))


def test_few_examples_of_a_stream_are_read(tmp_path):
    inputs, labels = np.arange(90, dtype=np.int32).reshape(30, 3), np.arange(30) % 2
    stream = Stream(inputs, labels)
    identity = parts_of(stream)
    assert stream.count <= 3 * 2 * 8
    assert identity.parts["train"][:2] == (30, None)
    data_identity._write(tmp_path, identity)
    data_identity.check(tmp_path, parts_of(Stream(inputs.copy(), labels)))
    for other in (Stream(inputs[::-1], labels), Stream(inputs[:, ::-1], labels)):
        with pytest.raises(ValueError, match="with other training examples of the same labels"):
            data_identity.check(tmp_path, parts_of(other))
    with pytest.raises(ValueError, match="with other labels of the training examples"):
        data_identity.check(tmp_path, parts_of(Stream(inputs, 1 - labels)))


def test_what_one_of_two_identities_lacks_is_not_compared(tmp_path):
    """Random views at every reading, kinds of inputs, and files of earlier versions."""
    inputs = np.ones((4, 3), np.int32)
    views, known = (
        parts_of(Stream(inputs, views=True)),
        parts_of(InMemory(inputs, np.arange(4) % 2)),
    )
    assert views.parts["test"] == (4, None, None, None, None, None, None)
    assert known.parts["test"].input_means == [1] * 4
    of_floats = parts_of(InMemory(inputs * 1.5, np.arange(4) % 2))
    assert of_floats.parts["test"].input_means is None
    for one, other in ((views, known), (known, views), (known, of_floats)):
        (tmp_path / "data.json").unlink(missing_ok=True)
        data_identity._write(tmp_path, one)
        data_identity.check(tmp_path, other)
    saved = json.loads((tmp_path / "data.json").read_text())
    for part in saved["parts"].values():
        del part["float_sums"], part["read_labels"]
    (tmp_path / "data.json").write_text(json.dumps(saved))
    data_identity.check(tmp_path, of_floats)


def scaled(inputs):
    return 1.01 * inputs


def one_value_in_ten_rows(inputs):
    changed = inputs.copy()
    changed[::10, 3] += 0.5 * inputs.std()
    return changed


@pytest.mark.parametrize("change", [shuffled, scaled, one_value_in_ten_rows, np.negative])
def test_changed_floats_are_other_data(tmp_path, change):
    """Vectors of texts, for example, which another encoder would write with the same labels."""
    inputs = np.random.default_rng(3).normal(size=(60, 50)).astype(np.float32)
    inputs[7], inputs[13, 2] = 0, np.nan
    labels = np.arange(60) % 2
    data_identity._write(tmp_path, parts_of(InMemory(inputs, labels)))
    rounded = (inputs * np.float32(1 + 1e-6)).astype(np.float64)
    data_identity.check(tmp_path, parts_of(InMemory(rounded, labels)))
    with pytest.raises(ValueError, match="with other training examples of the same labels"):
        data_identity.check(tmp_path, parts_of(InMemory(change(inputs), labels)))


def test_labels_of_many_places_and_of_any_integer_type(monkeypatch):
    labels = np.arange(60).reshape(5, 12) % 3
    inputs = {
        "words": np.arange(10).reshape(5, 2),
        "vectors": np.zeros((5, 2)),
        "root": np.ones(5, int),
    }
    parts = [parts_of(InMemory(inputs, labels.astype(kind))) for kind in (np.uint8, np.int64)]
    assert parts[0] == parts[1]
    assert parts[0].parts["train"].input_means == [1, 2, 3, 5, 6]  # (0 + 1 + 1) / 3, ...
    monkeypatch.setattr(source_identity, "_CHUNK", 7)
    assert parts_of(InMemory(inputs, labels)) == parts[0]
    assert parts_of(InMemory(inputs, labels[:, ::-1])) != parts[0]


def test_subwords_are_not_written_twice():
    known = data.Subwords.of(["one two three", "two three four"], size=20)
    assert parts_of(Stream(np.zeros((4, 2))), vocabulary=known).class_names is None
    assert parts_of(Stream(np.zeros((4, 2)))).class_names == ["a", "b"]
