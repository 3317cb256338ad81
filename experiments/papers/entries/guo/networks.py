"""Guo et al., figure 2: LeNet beside a ResNet, by error and by calibration."""

from experiments.papers.entries.trainings import CE, LENET
from experiments.papers.entry import Entry
from experiments.papers.judge import estimates, rules
from experiments.papers.judge.comparisons import Runs, ce2, difference
from experiments.papers.judge.values import Value


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the errors and the calibration errors of both networks."""
    lenet, resnet = runs["lenet"], runs["resnet"]
    return {
        "error(LeNet) - error(ResNet)": difference(lenet, resnet, estimates.error),
        "CE2(ResNet) - CE2(LeNet)": ce2(resnet, lenet),
    }


def _rule() -> rules.Rule:
    calibration = rules.above("CE2(ResNet) - CE2(LeNet)")
    both = rules.every(rules.above("error(LeNet) - error(ResNet)"), calibration)

    def judge(values: rules.Values) -> rules.Judgement:
        outcome = both.judge(values)
        if outcome.state != rules.FAILS:
            return outcome
        alone = calibration.judge(values)
        if alone.state == rules.FAILS:
            return alone
        return rules.Judgement(rules.UNDECIDED, alone.p)

    words = f"{both.words}, but does not hold only if the last one lies below"
    return rules.Rule(words, judge, both.names)


ENTRY = Entry(
    claims={"guo-lenet-better-calibrated-than-resnet": _rule()},
    runs={"lenet": LENET, "resnet": CE},
    statistic=statistic,
    note="On a processor the ResNet has 8 layers and 10,000 training images, and LeNet-5 45,000. On"
    " an accelerator it has four times the width, and both have 45,000 images. LeNet-5 has the"
    " recipe of its config in both.",
)
