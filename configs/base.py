"""What every config has, at the values of the papers' CIFAR recipe; each changes what differs.

Mukhoti et al. 2020 and those after them: SGD with learning rate 0.1, dropped tenfold at epochs
150 and 250 of 350, momentum 0.9, weight decay 5e-4 on every parameter, batches of 128, and, which
no paper says, the loss summed over the batch (see `configs/losses`) and its gradient clipped to
norm 2.
"""

from ml_collections import ConfigDict

from configs import losses


def base(loss: str) -> ConfigDict:
    """Return what all configs share, with the fragment of one loss."""
    return ConfigDict(
        {
            # What is trained on what.
            "data": {"name": "", "options": {}},
            "model": {"name": "", "options": {}},
            "loss": losses.load(loss),
            "seed": 1,
            "num_seeds": 1,  # from seed on, trained in one program; each has its own folder
            "init_from": "",  # weights to begin with: a file, or another run; --init_from sets it
            # For how long, and how.
            "num_epochs": 350,
            "batch_size": 128,
            "drop_last": False,
            "accumulate": 1,  # microbatches of a step, for want of memory
            "remat": False,  # compute activations twice, for want of memory; large networks only
            "optimiser": {
                "name": "sgd",
                "learning_rate": 0.1,
                "momentum": 0.9,
                "nesterov": False,
                "weight_decay": 5e-4,
                "clip_norm": 2.0,  # 0 is no clipping
            },
            "schedule": {
                "name": "multi_step",  # constant, multi_step, exponential, cosine, poly
                "milestones": (150, 250),
                "factor": 0.1,
                "power": 0.9,
                "warm_up_epochs": 0,  # of the learning rate
                "warm_up_factor": 0.2,
            },
            "augment": True,  # if the data set has an augmentation
            "mixup": 0.0,  # alpha of its Beta distribution; 0 is none
            "warm_up_epochs": 0,  # that are trained with warm_up_loss
            "warm_up_loss": losses.load("cross_entropy"),
            "average": 0.0,  # decay of an average of the weights, which is then evaluated
            "patience": 0,  # evaluations without a better patience_for; 0 is never
            "patience_for": "nll",
            # What is measured.
            "metrics": (
                "error",
                "nll",
                "ece",
                "brier",
                "mce",
                "adaptive_ece",
                "classwise_ece",
            ),
            "num_bins": 15,
            "eval_every_steps": 0,  # 0 is at the end of every epoch
            "diagnose": False,  # also the training set, right and wrong apart, and the last layer
            "evaluate_test": False,  # while training; experiments.evaluate always does
            "best": {"error": "min", "nll": "min", "ece": "min"},
            # What a result does not depend on, so that it may change while a run is resumed.
            "run": {
                "num_devices": 0,  # 0 is all
                "over": "map",  # seeds one after another; or side by side, by vmap; or by devices
                "resident_bytes": 2**30,  # data sets up to this size move to the devices
                "threads": 0,  # that read larger ones; 0 is one for each core
                "keep": 2,
                "checkpoint_every_epochs": 1,
                "checkpoint_every_minutes": 10.0,
                "keep_every_epochs": 0,
                "tensorboard": False,
                "show_epochs": (),  # whose gradients are drawn by diagnose; or three of them
            },
        }
    )
