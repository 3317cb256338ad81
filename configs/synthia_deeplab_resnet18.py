r"""The released DeepLabV3+ on SYNTHIA, by the recipe of Tian et al. 2021.

    python -m experiments.train --config=configs/synthia_deeplab_resnet18.py:recall \
        --workdir=/tmp/synthia --data_dir=DIR

DIR is the folder of the data sets; calib_jax/data/README.md describes its layout.

The sequence 05-SUMMER at 768 x 384 pixels, Adam with the constant learning rate 1e-3, batches of 6
images, 100,000 steps. The number of epochs is for 2,205 training images (3,150 frames); set
--config.num_epochs to 600,000 divided by the number of images that the description shows.
Published: ResNet-101, too (--config.model.name=deeplab_resnet101), from weights of ImageNet, and
void as a class.

Not run here yet.
"""

from ml_collections import ConfigDict

from configs import recipes


def get_config(loss: str = "cross_entropy") -> ConfigDict:
    """Return the config for one of the losses in configs/losses.py."""
    config = recipes.scenes("synthia", "deeplab_resnet18", loss)
    config.data.options = ConfigDict(
        {
            "sequence": "05-SUMMER",
            "cameras": "Stereo_Left",
            "height": 384,
            "width": 768,
            "seed": 0,
            "jitter": 0.0,
        }
    )
    config.num_epochs = 273
    config.optimizer.learning_rate = 1e-3
    return config
