"""Predict and measure the temperatures of full networks, from logits that stand in the checkout.

    python -m experiments.map.networks

It writes `experiments/results/map/law-networks.json`: for each network the temperatures of
cross-entropy by seed, and those predicted and measured for the other losses. Values of networks
without logits stay as they are; their logits stand at commit ef403bf7.
"""

import pathlib
from typing import Any, NamedTuple

import numpy as np
from absl import app

from experiments.map import heads
from experiments.map.settings import BASELINE, RESULTS, read, write
from experiments.papers import verdicts

NETWORKS = RESULTS / "law-networks.json"
DIGITS = RESULTS.parent / "digits_predictions.npz"
_OF_DIGITS = (
    *("cross_entropy", "focal_3", "flsd53", "adafocal", "dual_focal", "bsce_gra", "brier"),
    *("mmce", "label_smoothing", "recall"),
)


class Network(NamedTuple):
    """The folder of the runs of a network, and the suffix of its subfolders."""

    folder: pathlib.Path
    end: str = ""

    def runs(self, loss: str) -> list[pathlib.Path]:
        """List the runs of a loss, one for each seed."""
        name = {"focal_1": "focal-gamma=1.0", "focal_3": "focal-gamma=3.0"}.get(loss, loss)
        folders = [self.folder / f"{name}{self.end}"]
        if loss == "focal_3":
            folders.append(self.folder / f"focal{self.end}")
        return next((found for of in folders if (found := sorted(of.glob("*.npz")))), [])


_RUNS = verdicts.FOLDER / "runs"
FOLDERS = {
    "ResNet-8, CIFAR-10": Network(_RUNS / "cifar10_resnet8"),
    "wide ResNet-8, CIFAR-10": Network(
        verdicts.FOLDER / "gpu" / "runs" / "cifar10_resnet8", "-wide-30epochs-bfloat16"
    ),
    "ResNet-8, CIFAR-10-LT": Network(_RUNS / "cifar10_lt_resnet8"),
    "CNN, 20 Newsgroups": Network(_RUNS / "newsgroups_cnn", "-minilm"),
    "MiniLM, 20 Newsgroups": Network(_RUNS / "newsgroups_bert", "-minilm"),
}
_LOSSES = (*heads.LOSSES, "mmce")
Logits = dict[str, dict[str, np.ndarray]]


def logits_of(network: Network) -> Logits:
    """Read logits `[seeds, rows, classes]` and labels of both parts for each loss with records."""
    found: Logits = {}
    for loss in _LOSSES:
        runs = [np.load(path) for path in network.runs(loss)]
        if runs and "validation_logits" in runs[0].files:
            parts = ("validation_logits", "test_logits")
            found[loss] = {part: np.stack([run[part] for run in runs]) for part in parts}
            labels = ("validation_labels", "test_labels")
            found[loss] |= {part: runs[0][part].astype(int) for part in labels}
    return found


def digits() -> Logits:
    """Read the same of the small networks on the digits."""
    with np.load(DIGITS) as file:
        return {
            loss: {
                **{part: file[part][k] for part in ("validation_logits", "test_logits")},
                **{part: file[part].astype(int) for part in ("validation_labels", "test_labels")},
            }
            for k, loss in enumerate(_OF_DIGITS)
        }


def measured(logits: Logits) -> dict[str, Any]:
    """Predict and measure the temperatures of a network."""
    base = logits[BASELINE]
    values: dict[str, Any] = {}
    for loss, of in logits.items():
        z, y = of["validation_logits"], of["validation_labels"]
        errors = np.mean(of["test_logits"].argmax(-1) != of["test_labels"], axis=-1)
        values[loss] = {
            "measured": [round(heads.temperature(of_seed, y), 4) for of_seed in z],
            "error": np.round(errors, 4).tolist(),
        }
        if loss in heads.PREDICTED:
            inputs = base["validation_logits"], base["validation_labels"], loss
            values[loss]["predicted"] = heads.predicted(*inputs)["temperature"]
    return {"classes": base["test_logits"].shape[-1], "losses": values}


def main(_: Any) -> None:
    """Write the networks whose logits are there, and keep what is known of the others."""
    found = read(NETWORKS)
    readers = {name: logits_of(network) for name, network in FOLDERS.items()}
    for name, logits in (readers | {"MLP, digits": digits()}).items():
        if BASELINE in logits:
            known, new = found.get(name, {"losses": {}}), measured(logits)
            found[name] = new | {"losses": known["losses"] | new["losses"]}
            print(name, "written.", flush=True)
    write(NETWORKS, found)


if __name__ == "__main__":
    app.run(main)
