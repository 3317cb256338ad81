"""Lin et al., ablation: loss weighting beside gradient weighting, with three weights."""

from experiments.papers.entries.trainings import (
    BSCE,
    BSCE_GRA,
    DFL_GRA,
    DUAL_FOCAL,
    FL3,
    FL_GRA,
    on_lenet5,
)
from experiments.papers.entry import Entry
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs, ce2
from experiments.papers.judge.values import Value

PAIRS = {
    "FL": ("focal", "fl_gra"),
    "DFL": ("dual_focal", "dfl_gra"),
    "BS": ("bsce", "bsce_gra"),
}
ON_RESNET = {
    "focal": FL3,
    "fl_gra": FL_GRA,
    "dual_focal": DUAL_FOCAL,
    "dfl_gra": DFL_GRA,
    "bsce": BSCE,
    "bsce_gra": BSCE_GRA,
}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the weightings on ResNet-8 and on LeNet-5, and the weights on ResNet-8."""
    values = {}
    for name, (loss, gradient) in PAIRS.items():
        values[f"CE2({name} loss) - CE2({name} gradient)"] = ce2(runs[loss], runs[gradient])
        values[f"CE2({name} loss) - CE2({name} gradient), LeNet-5"] = ce2(
            runs[f"lenet5_{loss}"], runs[f"lenet5_{gradient}"]
        )
    for name in ("FL", "DFL"):
        values[f"CE2({name} gradient) - CE2(BS gradient)"] = ce2(
            runs[PAIRS[name][1]], runs["bsce_gra"]
        )
    return values


ENTRY = Entry(
    claims={
        "bsce-gra-gradient-beats-loss-own": rules.above(
            *(f"CE2({name} loss) - CE2({name} gradient)" for name in PAIRS)
        ),
        "bsce-gra-brier-beats-focal-weights-own": rules.above(
            "CE2(FL gradient) - CE2(BS gradient)", "CE2(DFL gradient) - CE2(BS gradient)"
        ),
    },
    runs=ON_RESNET | {f"lenet5_{loss}": on_lenet5(loss) for loss in ON_RESNET},
    statistic=statistic,
    note="The options are those of configs/losses, equal for both weightings of a weight; nothing"
    " was tuned. The verdicts are those of ResNet-8 with three seeds; LeNet-5 has five.",
)
