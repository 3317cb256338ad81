"""The settings of the map: heads on sentence vectors, in three parts.

map         twelve losses, six weight decays, three data sets, ten seeds
conditions  other sizes of the training set, label noise and widths, one at a time, five seeds
methods     the other losses, at two weight decays, ten seeds
"""

import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from calib_jax.train import log
from configs import intents_mlp

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "map"
RECORDS = RESULTS / "records.json"
BASELINE, FOCAL = "cross_entropy", "focal_3"
# The fragment of configs/losses, and the options that differ from its published values.
LOSSES: dict[str, tuple[str, dict[str, float]]] = {
    BASELINE: (BASELINE, {}),
    "focal_1": ("focal", {"gamma": 1.0}),
    FOCAL: ("focal", {"gamma": 3.0}),
    "flsd53": ("flsd53", {}),
    "adafocal": ("adafocal", {}),
    "dual_focal": ("dual_focal", {}),
    "bsce_gra": ("bsce_gra", {}),
    "brier": ("brier", {}),
    "mmce": ("mmce", {}),
    "label_smoothing": ("label_smoothing", {"alpha": 0.05}),
    "margin_smoothing": ("margin_smoothing", {}),
    "mdca": ("mdca", {}),
}
METHODS: dict[str, tuple[str, dict[str, float]]] = {
    "dca": ("dca", {}),
    "esd": ("esd", {}),
    "logit_norm": ("logit_norm", {}),
    "max_suppression": ("max_suppression", {}),
    "class_adaptive_margin": ("class_adaptive_margin", {}),
    "fl_gra": ("fl_gra", {"gamma": 3.0}),
    "dfl_gra": ("dfl_gra", {}),
    "bsce": ("bsce", {}),
    "label_smoothing_0.1": ("label_smoothing", {"alpha": 0.1}),
}
# The option of the data set or of the network that a condition changes.
CONDITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "size2000": ("data", {"training_size": 2000}),
    "size5000": ("data", {"training_size": 5000}),
    "noise0.1": ("data", {"label_noise": 0.1, "noisy": ("train",)}),
    "noise0.3": ("data", {"label_noise": 0.3, "noisy": ("train",)}),
    "width64": ("model", {"hidden": (64,)}),
    "width2048": ("model", {"hidden": (2048,)}),
}
TEXTS = ("banking77", "clinc150", "newsgroups")  # in the order in which they are trained
ENCODER = "all-MiniLM-L6-v2"
WEIGHT_DECAYS = (0.0, 5e-5, 2e-4, 5e-4, 2e-3, 5e-3)
TWO_WEIGHT_DECAYS = (0.0, 5e-4)  # of conditions and methods
SEEDS = tuple(range(1, 11))


class Setting(NamedTuple):
    """One cell of the map, trained with all seeds."""

    texts: str
    loss: str
    weight_decay: float
    condition: str = ""

    @property
    def name(self) -> str:
        """The name of the record of this setting.

        >>> Setting("banking77", "focal_3", 5e-4).name
        'banking77-focal_3-0.0005'
        >>> Setting("banking77", "focal_3", 5e-4, "width64").name
        'banking77-focal_3-0.0005-width64'
        """
        name = f"{self.texts}-{self.loss}-{self.weight_decay:g}"
        return f"{name}-{self.condition}" if self.condition else name

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of this setting: five under a condition, ten elsewhere."""
        return SEEDS[:5] if self.condition else SEEDS


def settings() -> Iterator[Setting]:
    """Yield all settings in the order in which they are trained; cross-entropy is first.

    >>> len(list(settings())), next(settings()).name
    (414, 'banking77-cross_entropy-0')
    """
    of_conditions = (BASELINE, FOCAL, "adafocal", "brier")
    parts: tuple[tuple[Iterable[str], tuple[float, ...], Iterable[str]], ...] = (
        (LOSSES, WEIGHT_DECAYS, ("",)),
        (of_conditions, TWO_WEIGHT_DECAYS, CONDITIONS),
        (METHODS, TWO_WEIGHT_DECAYS, ("",)),
    )
    for losses, decays, conditions in parts:
        for texts, loss, condition, decay in itertools.product(TEXTS, losses, conditions, decays):
            yield Setting(texts, loss, decay, condition)


def config_of(setting: Setting) -> ConfigDict:
    """Return the config of a setting, with the vectors in the folder of the data sets."""
    fragment, options = (LOSSES | METHODS)[setting.loss]
    config = intents_mlp.get_config(fragment)
    config.loss.options.update(options)
    config.loss.reduction = "mean"
    config.optimizer.weight_decay = setting.weight_decay
    config.data.options.update(
        {"folder": setting.texts, "texts": setting.texts, "encoder": ENCODER}
    )
    if setting.condition:
        section, changes = CONDITIONS[setting.condition]
        config[section].options.update(changes)
    config.seed, config.num_seeds = setting.seeds[0], len(setting.seeds)
    # The last weights are measured, so no other checkpoint is kept.
    config.metrics, config.best = ("error", "nll"), ConfigDict({})
    config.run.checkpoint_every_epochs, config.run.checkpoint_every_minutes = 0, 1.0
    config.run.num_devices = 1
    return config


def read(path: pathlib.Path) -> dict[str, Any]:
    """Read the records of a file by name; {} if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: pathlib.Path, records: Mapping[str, Any]) -> None:
    """Write one line for each record."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    log.replace(path, "{\n" + ",\n".join(lines) + "\n}\n")
