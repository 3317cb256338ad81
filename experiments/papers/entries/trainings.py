"""The trainings on CIFAR-10 that entries share, so that each run is trained and kept once."""

import dataclasses

from experiments.papers.entry import Training

CE = Training("cross_entropy")
FL1, FL2, FL3 = (Training("focal", {"gamma": gamma}) for gamma in (1.0, 2.0, 3.0))
FL4, FL5 = (Training("focal", {"gamma": gamma}, keep="columns") for gamma in (4.0, 5.0))
FLSD53 = Training("flsd53")
ADAFOCAL = Training("adafocal")
# Of these the predictions at the end are enough.
DUAL_FOCAL, BRIER, MMCE, LABEL_SMOOTHING, BSCE_GRA = (
    Training(loss, diagnosed=False)
    for loss in ("dual_focal", "brier", "mmce", "label_smoothing", "bsce_gra")
)
FL_GRA, DFL_GRA, BSCE = (
    Training(loss, keep="columns", diagnosed=False) for loss in ("fl_gra", "dfl_gra", "bsce")
)
LABEL_SMOOTHING_01 = Training("label_smoothing", {"alpha": 0.1}, keep="columns", diagnosed=False)


def undiagnosed(training: Training, keep: str = "logits") -> Training:
    """Return a training again without its diagnosis, which takes a third of the time.

    For entries that measure checkpoints. They are younger than the records of the diagnosed runs,
    whose checkpoints are no longer there.
    """
    return dataclasses.replace(
        training, changes={"diagnose": False}, alias="undiagnosed", keep=keep, diagnosed=False
    )


def on_lenet5(loss: str) -> Training:
    """Return a training of LeNet-5 with five seeds."""
    return Training(loss, config="cifar10_lenet5", seeds=5, keep="columns")


LENET = dataclasses.replace(on_lenet5("cross_entropy"), seeds=3)
# Cross-entropy and BSCE-GRA on other networks, for an accelerator.
NETWORKS = {
    name: tuple(Training(loss, config=f"cifar10_{name}") for loss in ("cross_entropy", "bsce_gra"))
    for name in ("wide_resnet26_10", "densenet121")
}


def changed(**changes: object) -> Training:
    """Return a training with cross-entropy, one seed and other keys of the config."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return Training("cross_entropy", changes=keys, seeds=1, keep="columns", diagnosed=False)
