"""The base config, which holds every key, and a table of the losses' published options.

`base` has the recipe of Mukhoti et al. 2020 and later papers: SGD with learning rate 0.1, dropped
tenfold at epochs 150 and 250 of 350, momentum 0.9, weight decay 5e-4 on every parameter, and
batches of 128.
The released code, but no paper, also sums the loss over the batch and clips its gradient to norm 2.
A new key in `base` has 0, False, None or an empty value, with which a run trains as before the key.

A row of the table is the name of the loss in `calib_jax.losses.objective`, the reduction of the
recipe over the batch, and every option at the published value, so that each can be overridden on
the command line. The comment before a row cites the source, and marks values that we chose because
no source gives them. Because of gradient clipping, "sum" and "mean" differ by more than a factor of
the rate.
"""

import copy
import difflib
from typing import Any

from ml_collections import ConfigDict, config_dict


def base(loss: str, *, reduction: str = "", clip_norm: float = 2.0) -> ConfigDict:
    """Return the base config with the fragment of one loss.

    Args:
      loss: the loss.
      reduction: the reduction over the batch; empty takes that of the loss's recipe.
      clip_norm: the largest norm of a gradient; 0 disables clipping.
    """
    config = ConfigDict(
        {
            # Data, model, loss and seeds.
            "data": {
                "name": "",
                "options": {},
                # shuffled: every example once an epoch; class_balanced: classes equally often,
                # examples drawn with replacement.
                "order": "shuffled",
            },
            "model": {"name": "", "options": {}},
            "loss": load(loss),
            "seed": 1,
            "num_seeds": 1,  # consecutive seeds, one after another, each in its own folder
            "init_from": "",  # initial weights: a file or another run; --init_from sets it
            # Training length and optimisation.
            "num_epochs": 350,
            "batch_size": 128,
            "drop_last": False,  # leave out the last batch of an epoch if it is not full
            "accumulate": 1,  # microbatches per step, to save memory
            "remat": False,  # recompute activations to save memory; large networks only
            "precision": "float32",  # tensorfloat32 and bfloat16 are faster on accelerators
            "optimizer": {
                "name": "sgd",
                "learning_rate": 0.1,
                "momentum": 0.9,
                "nesterov": False,
                "weight_decay": 5e-4,
                "clip_norm": clip_norm,  # 0 disables clipping
            },
            "schedule": {
                # constant, multi_step, exponential, cosine, poly, linear, inverse_sqrt
                "name": "multi_step",
                "milestones": (150, 250),  # epochs after which multi_step multiplies by factor
                "factor": 0.1,  # of multi_step, and of exponential after every epoch
                "power": 0.9,  # of poly
                "warm_up_epochs": 0,  # of the learning rate
                "warm_up_factor": 0.2,  # the share of the learning rate at its start
            },
            "augment": True,  # if the data set has an augmentation
            "mixup": 0.0,  # alpha of its Beta distribution; 0 disables mixup
            "warm_up_epochs": 0,  # number of first epochs trained with warm_up_loss
            "warm_up_loss": load("cross_entropy"),
            "average": 0.0,  # decay of a weight average, which is evaluated instead; 0 disables it
            "patience": 0,  # stop after this many evaluations without improvement; 0 disables it
            "patience_for": "nll",  # refinement_nll: of the network once it is calibrated
            # Evaluation.
            "metrics": ("error", "nll", "ece", "brier", "mce", "adaptive_ece", "classwise_ece"),
            "num_bins": 15,
            "eval_every_steps": 0,  # 0 evaluates at the end of every epoch
            "diagnose": False,  # also measure training set, right and wrong rows, and last layer
            "evaluate_test": False,  # during training; experiments.evaluate always does
            # Validation metrics, each "min" or "max", whose best checkpoint is kept;
            # --config.best.accuracy=max adds one.
            "best": {"error": "min", "nll": "min", "ece": "min"},
            # Settings that do not affect results and may change when a run is resumed.
            "run": {
                "num_devices": 0,  # 0 uses all
                "resident_bytes": 2**30,  # data sets up to this size move to the devices
                "threads": 0,  # threads that read larger data sets; 0 uses one per core
                "keep": 2,  # newest checkpoints, besides the best
                "checkpoint_every_epochs": 1,  # 0 saves only the best and the last
                "checkpoint_every_minutes": 10.0,  # the longest time between checkpoints
                "keep_every_epochs": 0,  # between checkpoints that are never deleted; 0 keeps none
                "writers": (),  # "tensorboard", "wandb": receivers of the logged rows
                "show_epochs": (),  # epochs whose gradients diagnose draws; () selects three
            },
        }
    )
    if reduction:
        config.loss.reduction = config.warm_up_loss.reduction = reduction
    return config


# ------------------------------------------------------------------------------------------------
# The losses.


def _loss(name: str, reduction: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "reduction": reduction, "options": options}


_EPOCHS = config_dict.placeholder(tuple)  # None unless it is given


_TABLE = (
    # The baseline of every paper. The released vision recipes of Mukhoti et al. 2020, Ghosh et al.
    # 2022 and Lin et al. 2025 sum it over the batch and clip the gradient to norm 2; the text
    # recipes take the mean.
    _loss("cross_entropy", "sum"),
    # ------------------------------------------------------------------------------------------
    # Focal losses.
    # Lin et al. 2017; Mukhoti et al. 2020 try gamma 1, 2 and 3, and 3 is the best (FL-3).
    _loss("focal", "sum", gamma=3.0, weighting="loss"),
    # Wang et al. 2021. Our sources give no gamma for this loss alone; 1 is our choice.
    _loss("inverse_focal", "sum", gamma=1.0, weighting="loss"),
    # Mukhoti et al. 2020: gamma is 5 where p_y < 0.2 and 3 elsewhere (FLSD-53). Their text code has
    # the threshold 0.19 (`flsd53_text`).
    _loss("flsd53", "sum", weighting="loss"),
    _loss("flsd53_text", "sum", weighting="loss"),
    # Mukhoti et al. 2020: gamma 5 where p_y < 0.2, 3 up to 0.5 and 2 above. Their scripts call it
    # FLSD-52.
    _loss("flsd532", "sum", weighting="loss"),
    # Mukhoti et al. 2020: gamma changes after 100 and 250 of 350 epochs; other numbers of epochs
    # scale these in proportion. `milestones` overrides them: (30, 70) of 100 on Tiny-ImageNet.
    _loss("flsc531", "sum", milestones=_EPOCHS),
    _loss("flsc532", "sum", milestones=_EPOCHS),
    # Ghosh et al. 2022. The defaults of their command line, but for `binning`: their bins of equal
    # mass hold whole examples ("released"), and ours split the examples at a boundary ("mass").
    # rule="slides" is the plain rule, without sign, switch and clipping.
    _loss(
        "adafocal",
        "sum",
        num_bins=15,
        gamma_initial=1.0,
        rate=1.0,
        switch=0.2,
        gamma_min=-2.0,
        gamma_max=20.0,
        rule="released",
        binning="mass",
        weighting="loss",
    ),
    # Tao et al. 2023. Our sources give no gamma; 5 is our choice. runner_up="below" follows the
    # code released with Lin et al. 2025; their notebook uses the second largest ("second").
    _loss(
        "dual_focal", "sum", gamma=5.0, runner_up="below", detach_runner_up=False, weighting="loss"
    ),
    # ------------------------------------------------------------------------------------------
    # Weighted gradients: Lin et al. 2025.
    # gamma = beta = 2, the Brier score itself, is the best published setting; the defaults of their
    # command line are 1 and 1. Their only script for `bsce` (Tiny-ImageNet) uses gamma 4.
    _loss("bsce_gra", "sum", gamma=2.0, beta=2.0, reading="norm"),
    _loss("bsce", "sum", gamma=2.0, beta=2.0, reading="norm"),
    # With the gammas of FLSD-53. Our sources give no beta; 2 is that of `bsce_gra`.
    _loss("bsce_adaptive_gra", "sum", thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 3.0), beta=2.0),
    # Our sources give no gammas; 3 is that of FL-3, and 5 our choice, as in `dual_focal`. The
    # released class of `dfl_gra` detaches only the runner-up: `dual_focal`, detach_runner_up=True.
    _loss("fl_gra", "sum", gamma=3.0),
    _loss("dfl_gra", "sum", gamma=5.0, runner_up="below"),
    _loss("flsd53_gra", "sum"),
    # Their code multiplies the mean over a batch of N by N, so it sums.
    _loss("mmce_gra", "sum", bandwidth=0.4),
    # ------------------------------------------------------------------------------------------
    # Proper scores and smoothed labels.
    # Mukhoti et al. 2020 take the mean over the batch, unlike for their other losses; Lin et al.
    # 2025 sum it. Their recipe for it has 550 epochs for the wide ResNet on CIFAR-10, 430 for
    # ResNet-110 on CIFAR-100, and learning rate 0.035 on Tiny-ImageNet.
    _loss("brier", "mean"),
    # Mukhoti et al. 2020 (LS-0.05): alpha / (K - 1) on every wrong class; also alpha 0.1. Szegedy
    # et al. 2016 and optax spread alpha over all classes: their alpha is alpha (K - 1) / K here.
    _loss("label_smoothing", "sum", alpha=0.05, spread="others"),
    # Liu et al. 2022: the released configs for CIFAR-10 and Tiny-ImageNet. The released code takes
    # the mean over the examples and the classes; the paper sums over the classes.
    _loss("margin_smoothing", "mean", alpha=0.1, margin=10.0, class_reduction="mean"),
    # Liu et al. 2023: the released config for "aug_lagrangian_class"; margin 10 is that of the
    # released commands for Tiny-ImageNet and ImageNet-LT, where the config has 20.
    _loss(
        "class_adaptive_margin",
        "mean",
        margin=10.0,
        penalty="phr",
        multiplier_min=1e-6,
        multiplier_max=1e6,
        rho=1.0,
        rho_max=10.0,
        rho_growth=1.2,
        rho_step=10,
        improvement=0.9,
    ),
    # Zhou et al. 2025: the released code raises alpha linearly from 0.1 to 0.2 during training.
    _loss("max_suppression", "mean", alpha=0.1),
    # Pereyra et al. 2017. The text code of Mukhoti et al. 2020 uses lambda 1 and gamma 1, which
    # weights the entropy like focal loss; gamma 0 is the paper's. That code takes the mean.
    _loss("entropy_regularized", "mean", scale=1.0, gamma=0.0),
    _loss("focal_entropy_regularized", "mean", focal_gamma=3.0, scale=1.0, gamma=0.0),
    # Wei et al. 2022. tau depends on the data: 0.04 is OpenOOD's value; the released README trains
    # CIFAR-10 with 0.01.
    _loss("logit_norm", "mean", tau=0.04),
    # ------------------------------------------------------------------------------------------
    # Penalties of a batch.
    # Kumar et al. 2018. The scripts of Mukhoti et al. 2020 use lambda 2; other released code 1, 4,
    # 8 and 10. They minimise N (mean CE + lambda MMCE) over a batch of N, which equals the sum of
    # our terms, because the penalty is added to the term of every example.
    _loss("mmce", "sum", scale=2.0, bandwidth=0.4),
    # Separate weights for right and wrong answers. The code of Mukhoti et al. 2020 divides by the
    # numbers of examples twice, and lambda 2 was chosen with it: double_normalization=True
    # reproduces their runs. This row follows the formula, with ten times their gradient.
    _loss("mmce_weighted", "sum", scale=2.0, bandwidth=0.4, double_normalization=False),
    # Bohdal et al. 2023. Bins and sharpness are those of the code released with Lin et al. 2025,
    # which uses cross_entropy_scale=0. lambda 1 and the sum over the batch are our choice.
    _loss(
        "soft_ece",
        "sum",
        scale=1.0,
        cross_entropy_scale=1.0,
        num_bins=15,
        rank_sharpness=100.0,
        bin_temperature=0.01,
    ),
    # Liang et al. 2020: scale and reduction of the scripts of Hebbalaguppe et al. 2022, "NLL+DCA".
    _loss("dca", "mean", scale=1.0),
    # Hebbalaguppe et al. 2022: the released CIFAR-10 scripts for "NLL+MDCA"; their "FL+MDCA" has
    # focal_gamma=1.0.
    _loss("mdca", "mean", scale=1.0, focal_gamma=0.0),
    # Yoon et al. 2023: the released script for ImageNet-100, which holds out a tenth of the
    # training set for the penalty; here the penalty and cross-entropy see the same batch.
    _loss("esd", "mean", scale=4.0),
    # ------------------------------------------------------------------------------------------
    # Rare classes.
    # Tian et al. 2021. alpha 1 uses only the recall of the batch. The paper's moving average has a
    # smaller alpha, which our sources do not give; an older released function uses 0.5. The
    # released code takes the plain mean over all pixels; counters="released" selects its counters.
    _loss("recall", "mean", alpha=1.0, counters="recall", normalized=False),
    # Released with Tian et al. 2021, with a floor of 1e-9; the values are those of `recall`.
    _loss("recall_precision", "mean", alpha=1.0, counters="recall", floor=0.0),
    # Cui et al. 2019 search volumes of 10, 100, 1,000 and 10,000; the last one is our choice.
    _loss("class_weighted", "mean", balancing="effective", volume=10_000.0, normalized=False),
    # Cao et al. 2019: the largest margin, the scale and the mean are theirs.
    _loss("ldam", "mean", max_margin=0.5, scale=30.0),
    # Menon et al. 2021: their tau; the mean over the batch is ours.
    _loss("logit_adjusted", "mean", tau=1.0),
    # ------------------------------------------------------------------------------------------
    # Pixels. Losses per image need an axis of pixels: --config.loss.options.per_image.
    # Berman et al. 2018, alone; and Rahman and Wang 2016, alone. The code released with Tian et al.
    # 2021 computes both per image.
    _loss("lovasz", "mean", scale=1.0, cross_entropy_scale=0.0, per_image=False),
    _loss("soft_iou", "mean", scale=1.0, cross_entropy_scale=0.0, per_image=False),
    # Wu et al. 2016 keep the 512 hardest pixels of a crop, that is per image.
    _loss("bootstrapped", "mean", count=512, per_image=False),
    # Shrivastava et al. 2016: 0.7 is the threshold in the configs of the code released with Tian et
    # al. 2021, which selects pixels by rows of an image instead.
    _loss("ohem", "mean", fraction=0.7),
    # Murugesan et al. 2023: the defaults of MONAI's NACLLoss; labels [images, height, width].
    _loss("neighbour_margin", "mean", alpha=0.1, distance="l1", kernel_size=3),
)


def names() -> list[str]:
    """List the losses of the table."""
    return sorted(row["name"] for row in _TABLE)


def load(name: str) -> ConfigDict:
    """Return the config of a loss: its name, its options and the reduction over the batch."""
    by_name = {row["name"]: row for row in _TABLE}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names())}."
        raise ValueError(f"no config for a loss {name!r}{hint}")
    return ConfigDict(copy.deepcopy(by_name[name]))  # the table's placeholders stay empty
