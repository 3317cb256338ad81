r"""The released DeepLabV3+ on Cityscapes, by the recipe of Tian et al. 2021.

    python -m experiments.train --config=configs/cityscapes_deeplab_resnet18.py:recall \
        --workdir=/tmp/cityscapes --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

Adam with the constant learning rate 1e-4, batches of 6 crops of 769 x 769, 90,000 steps, which are
207 epochs of the 2,614 images that are left for training. Published: ResNet-101, too
(--config.model.name=deeplab_resnet101), from weights of ImageNet, and validation on the official
validation images, which test here.

Not run here yet.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.scenes("cityscapes", "deeplab_resnet18", loss)
    config.data.options = ConfigDict(
        {
            "held_out": ("tubingen", "ulm", "zurich"),
            "crop": 769,
            "scales": (0.75, 1.0, 1.25, 1.5, 1.75, 2.0),
            "jitter": 0.5,
        }
    )
    config.num_epochs = 207
    config.optimizer.learning_rate = 1e-4
    return config
