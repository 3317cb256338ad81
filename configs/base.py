"""The base of all configs: every key, at the values of the papers' CIFAR recipe.

The recipe of Mukhoti et al. 2020 and later papers: SGD with learning rate 0.1, dropped tenfold at
epochs 150 and 250 of 350, momentum 0.9, weight decay 5e-4 on every parameter, and batches of 128.
The released code, but no paper, also sums the loss over the batch (`configs/losses.py`) and clips
its gradient to norm 2.

A new key here has 0, False, None or an empty value, with which a run trains as before the key.
"""

from ml_collections import ConfigDict

from configs import losses


def base(loss: str, *, reduction: str = "", clip_norm: float = 2.0) -> ConfigDict:
    """Return the base config with the fragment of one loss.

    Args:
      loss: the loss.
      reduction: the reduction over the batch; empty takes that of the recipe in configs/losses.py.
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
            "loss": losses.load(loss),
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
            "warm_up_loss": losses.load("cross_entropy"),
            "average": 0.0,  # decay of a weight average, which is evaluated instead; 0 disables it
            "patience": 0,  # stop after this many evaluations without improvement; 0 disables it
            "patience_for": "nll",  # refinement_nll: of the network once it is calibrated
            # Evaluation.
            "metrics": ("error", "nll", "ece", "brier", "mce", "adaptive_ece", "classwise_ece"),
            "num_bins": 15,
            "eval_every_steps": 0,  # 0 evaluates at the end of every epoch
            "diagnose": False,  # also measure training set, right and wrong rows, and last layer
            "evaluate_test": False,  # during training; experiments.evaluate always does
            # Validation metrics, each "min" or "max", whose best checkpoint is kept.
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
