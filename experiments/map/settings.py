"""The settings of the map: twelve losses, six weight decays, three data sets, ten seeds.

They are fixed with the rules in README.md, before any run of the map.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import ConfigDict

from configs import intents_mlp

BASELINE = "cross_entropy"
# The fragment of configs/losses, and the options that differ from its published values.
LOSSES: dict[str, tuple[str, dict[str, float]]] = {
    BASELINE: (BASELINE, {}),
    "focal_1": ("focal", {"gamma": 1.0}),
    "focal_3": ("focal", {"gamma": 3.0}),
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
TEXTS = ("banking77", "clinc150", "newsgroups")  # in the order in which they are trained
ENCODER = "all-MiniLM-L6-v2"
WEIGHT_DECAYS = (0.0, 5e-5, 2e-4, 5e-4, 2e-3, 5e-3)
SEEDS = tuple(range(1, 11))
OUT_OF_SCOPE = {"clinc150": "clinc150_out"}  # the folder of the out-of-scope vectors


class Setting(NamedTuple):
    """One cell of the map, trained with all seeds in one program."""

    texts: str
    loss: str
    weight_decay: float

    @property
    def name(self) -> str:
        """The name of the record of this setting.

        >>> Setting("banking77", "focal_3", 5e-4).name
        'banking77-focal_3-0.0005'
        """
        return f"{self.texts}-{self.loss}-{self.weight_decay:g}"


def settings() -> Iterator[Setting]:
    """Yield all settings in the order in which they are trained; cross-entropy comes first.

    >>> len(list(settings())), next(settings()).name
    (216, 'banking77-cross_entropy-0')
    """
    for texts in TEXTS:
        for loss in LOSSES:
            for weight_decay in WEIGHT_DECAYS:
                yield Setting(texts, loss, weight_decay)


def config_of(setting: Setting, seeds: tuple[int, ...] = SEEDS) -> ConfigDict:
    """Return the config of a setting, with the vectors in the folder of the data sets."""
    fragment, options = LOSSES[setting.loss]
    config = intents_mlp.get_config(fragment)
    config.loss.options.update(options)
    config.loss.reduction = "mean"
    config.optimizer.weight_decay = setting.weight_decay
    config.data.options.update(
        {"folder": setting.texts, "texts": setting.texts, "encoder": ENCODER}
    )
    config.seed, config.num_seeds = seeds[0], len(seeds)
    # The last weights are measured, so no other checkpoint is kept.
    config.metrics, config.best = ("error", "nll"), ConfigDict({})
    config.run.checkpoint_every_epochs, config.run.checkpoint_every_minutes = 0, 1.0
    config.run.num_devices = 1
    return config
