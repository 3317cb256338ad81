"""Mukhoti et al., section 5: noisy images told apart by entropy, FLSD-53 beside cross-entropy."""

from experiments.papers.entries.trainings import CE, FLSD53
from experiments.papers.entry import Entry
from experiments.papers.judge import estimates, paired, rules
from experiments.papers.judge.comparisons import Runs, Seeds
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

MEASURE = "noise"


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the AUROC of the entropy, before and after the temperature."""
    ce, flsd = runs["ce"], runs["flsd"]
    values = {
        f"AUROC(FLSD-53) - AUROC(CE), {phase}": auroc_difference(flsd, ce, phase)
        for phase in ("before", "after")
    }
    values["AUROC(CE), before"] = paired.over_seeds_and_rows([auroc(run, "before") for run in ce])
    values["AUROC(CE+TS) - AUROC(CE)"] = paired.over_seeds_and_rows(
        [auroc(run, "after") - auroc(run, "before") for run in ce]
    )
    return values


def auroc(run: Trained, phase: str) -> Estimate:
    """Compute how well the entropy separates the test images from the same with noise."""
    clean = run.logits if phase == "before" else run.scaled
    noisy = run.columns(MEASURE, phase).entropy
    return estimates.auroc(clean.entropy, noisy)


def auroc_difference(first: Seeds, second: Seeds, phase: str) -> Value:
    """Average the AUROC of `first` minus that of `second` over seeds."""
    return paired.over_seeds_and_rows(
        [auroc(a, phase) - auroc(b, phase) for a, b in zip(first, second, strict=True)]
    )


ENTRY = Entry(
    claims={
        "mukhoti-ood-noise-own": rules.above(
            "AUROC(FLSD-53) - AUROC(CE), before", "AUROC(FLSD-53) - AUROC(CE), after"
        ),
        "mukhoti-ts-does-not-help-ood": rules.below("AUROC(CE+TS) - AUROC(CE)", margin=0.01),
    },
    runs={"ce": CE, "flsd": FLSD53},
    measures=(MEASURE,),
    statistic=statistic,
    note="Test images against the same with Gaussian noise of standard deviation .1, severity 5 of"
    " CIFAR-10-C.",
)
