"""Guo et al.: the share of networks, trained with cross-entropy, that a temperature improves."""

import functools

from experiments.papers.entries.text_trainings import newsgroups_bert, newsgroups_cnn, sst
from experiments.papers.entries.trainings import CE
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, rules
from experiments.papers.judge.comparisons import Runs, Seeds
from experiments.papers.judge.paired import over_seeds_and_rows
from experiments.papers.judge.values import Value

MEASURE = "segments"
OF_PIXELS = "DeepLab on CamVid"
NETWORKS = {
    "ResNet-8 on CIFAR-10": CE,
    "ResNet-8 on CIFAR-10-LT": Training("cross_entropy", config="cifar10_lt_resnet8"),
    OF_PIXELS: Training("cross_entropy", config="camvid_deeplab_small", keep="none"),
    "CNN on 20 Newsgroups": newsgroups_cnn("cross_entropy"),
    "MiniLM on 20 Newsgroups": newsgroups_bert("cross_entropy"),
    "Tree-LSTM on the SST": sst("cross_entropy"),
}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the squared calibration errors before and after the temperature."""
    return {
        _name(network): (_change_of_pixels if network == OF_PIXELS else _change)(runs[network])
        for network in NETWORKS
    }


def _name(network: str) -> str:
    return f"CE2 - CE2 after T, {network}"


def _change(seeds: Seeds) -> Value:
    return comparisons.ce2(
        seeds, seeds, other_part=lambda run: run.logits.scaled(run.temperature_by_nll)
    )


def _change_of_pixels(seeds: Seeds) -> Value:
    of = functools.partial(comparisons.ce2_of_images, measure=MEASURE)
    return over_seeds_and_rows([of(run, phase="before") - of(run, phase="after") for run in seeds])


# At least 90 % of six networks are all; fewer than half are two.
MOST = rules.several(*map(_name, NETWORKS), holds=6, fails=2)
ENTRY = Entry(
    claims={"guo-almost-all-deep-models-need-calibration": MOST},
    runs=NETWORKS,
    measures=(MEASURE,),
    measured=(OF_PIXELS,),
    statistic=statistic,
)
