"""One table of trainings: network and data (a file of `configs/`), loss, recipe, seeds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

SMALLER = {"data.options.length": 250, "num_epochs": 22}
GLOVE = {
    "data.options.vectors": "minilm_newsgroups_100.txt",
    "optimizer.groups": (("embedding/*", {"frozen": True}),),
}
MINILM = {
    **{"model.options.width": 384, "model.options.depth": 6, "model.options.mlp_width": 1536},
    **{"data.options.pieces": "minilm", "init_from": "minilm"},
    **{"data.options.length": 128, "num_epochs": 2},
}


class Training(NamedTuple):
    """A training with its seeds.

    Attributes:
      config: a file of `configs/`, without .py.
      loss: a loss of the config.
      options: options of the loss, in place of the published ones.
      changes: other keys of the config.
      alias: a short name of the changes, for the folder.
      seeds: number of seeds, from 1 on.
      checkpoint: the measured checkpoint, such as "best_error"; "" is the sweep's default.
    """

    config: str
    loss: str
    options: Mapping[str, Any] = {}
    changes: Mapping[str, Any] = {}
    alias: str = ""
    seeds: int = 3
    checkpoint: str = ""

    @property
    def overrides(self) -> dict[str, Any]:
        """All keys of the config that change."""
        return {f"loss.options.{k}": v for k, v in self.options.items()} | dict(self.changes)

    @property
    def folder(self) -> str:
        """The folder of its records.

        >>> Training("cifar10_resnet8", "focal", {"gamma": 3.0}).folder
        'cifar10_resnet8/focal-gamma=3.0'
        """
        named = {} if self.alias else self.changes
        parts = [f"{k.rpartition('.')[2]}={v}" for k, v in {**self.options, **named}.items()]
        return f"{self.config}/" + "-".join(filter(None, (self.loss, self.alias, *parts)))


def _resnet(loss: str, changes: Mapping[str, Any] | None = None, **options: float) -> Training:
    return Training("cifar10_resnet8", loss, options, changes or {})


def _lenet(loss: str, **options: float) -> Training:
    return Training("cifar10_lenet5", loss, options)


def _cnn(loss: str) -> Training:
    return Training("newsgroups_cnn", loss, {}, SMALLER | GLOVE, "minilm", 3, "best_error")


def _bert(loss: str) -> Training:
    return Training("newsgroups_bert", loss, {}, MINILM, "minilm", 1, "best_error")


def _tail(loss: str) -> Training:
    return Training("cifar10_lt_resnet8", loss)


# ResNet-8 of width 16, 10,000 images of CIFAR-10, 40 epochs; three more networks below it.
TRAININGS: dict[str, Training] = {
    "CE": _resnet("cross_entropy"),
    "FL-1": _resnet("focal", gamma=1.0),
    "FL-2": _resnet("focal", gamma=2.0),
    "FL-3": _resnet("focal", gamma=3.0),
    "FL-4": _resnet("focal", gamma=4.0),
    "FL-5": _resnet("focal", gamma=5.0),
    "FLSD-53": _resnet("flsd53"),
    "AdaFocal": _resnet("adafocal"),
    "dual focal": _resnet("dual_focal"),
    "Brier": _resnet("brier"),
    "MMCE": _resnet("mmce"),
    "LS-0.05": _resnet("label_smoothing"),
    "LS-0.1": _resnet("label_smoothing", alpha=0.1),
    "BSCE": _resnet("bsce"),
    "BSCE-GRA": _resnet("bsce_gra"),
    "BSCE-GRA 1, 2": _resnet("bsce_gra", gamma=1.0, beta=2.0),
    "BSCE-GRA 3, 2": _resnet("bsce_gra", gamma=3.0, beta=2.0),
    "BSCE-GRA 2, 1": _resnet("bsce_gra", gamma=2.0, beta=1.0),
    "FL-GRA": _resnet("fl_gra"),
    "DFL-GRA": _resnet("dfl_gra"),
    "CE, no norm": _resnet("cross_entropy", {"model.options.norm": "none"})._replace(seeds=1),
    "CE, decay 0": _resnet("cross_entropy", {"optimizer.weight_decay": 0.0})._replace(seeds=1),
    "LeNet CE": _lenet("cross_entropy"),
    "LeNet FL-3": _lenet("focal"),
    "LeNet FL-10": _lenet("focal", gamma=10.0),
    "LeNet FL-20": _lenet("focal", gamma=20.0),
    "LeNet FL-50": _lenet("focal", gamma=50.0),
    "LeNet inverse 2": _lenet("inverse_focal", gamma=2.0),
    "CNN CE": _cnn("cross_entropy"),
    "CNN FLSD-53": _cnn("flsd53"),
    "CNN AdaFocal": _cnn("adafocal"),
    "BERT CE": _bert("cross_entropy"),
    "BERT FLSD-53": _bert("flsd53"),
    "BERT AdaFocal": _bert("adafocal"),
    "LT CE": _tail("cross_entropy"),
    "LT recall": _tail("recall"),
}
