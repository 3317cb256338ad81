"""Lin et al., key findings: BSCE-GRA beside cross-entropy on three kinds of networks."""

from experiments.papers.entries.trainings import BSCE_GRA, CE, NETWORKS
from experiments.papers.entry import Entry
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs, ce2
from experiments.papers.judge.values import Value

ALL_NETWORKS = {"resnet": (CE, BSCE_GRA), **NETWORKS}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the calibration errors on every network."""
    return {_name(network): ce2(runs[f"{network}_ce"], runs[network]) for network in ALL_NETWORKS}


def _name(network: str) -> str:
    return f"CE2(CE) - CE2(BSCE-GRA), {network}"


ENTRY = Entry(
    claims={"bsce-gra-across-architectures": rules.above(*map(_name, ALL_NETWORKS))},
    runs={
        name: training
        for network, pair in ALL_NETWORKS.items()
        for name, training in zip((f"{network}_ce", network), pair, strict=True)
    },
    statistic=statistic,
    note="For an accelerator: --scale=gpu trains a wide ResNet-8, Wide-ResNet-26-10 and"
    " DenseNet-121 with a short schedule.",
)
