"""Augmentation on the device: pure functions of a key and one stored image or example.

A training step takes a function `(key, Examples) -> Examples` of one example, and maps it over the
batch with one key per example. `on_inputs` and `on_pairs` convert a function of an image:

    crop = compose(random_crop(padding=4), random_flip())
    examples = jax.vmap(on_inputs(crop))(keys, examples)  # the labels do not change
    examples = jax.vmap(on_pairs(crop))(keys, examples)   # label maps are cropped like the images

Mixup combines examples of the whole batch, so `mixup(0.2)` returns a function of the batch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Integer

from calib_jax.core import checks
from calib_jax.core.examples import Examples
from calib_jax.core.statistics import gather
from calib_jax.core.types import Array, AxisName, Number, PyTree, Scalar

Augmentation: TypeAlias = Callable[[Any, Any], Any]

_MIXUP = 0x6D6978  # folded into keys, so that mixup and augmentation use different keys


def _image(name: str, image: Any) -> Array:
    """Convert one image, or one label map, to an array; refuse a batch and a tree of arrays."""
    array = None if isinstance(image, Mapping | tuple) else jnp.asarray(image)
    if array is None or array.ndim not in (2, 3):
        raise ValueError(
            f"{name}: an image is [height, width] or [height, width, channels], got"
            f" {type(image).__name__ if array is None else array.shape}: give one image, and use"
            " jax.vmap for a batch."
        )
    return array


def random_crop(*, padding: int = 4, fill: str = "zeros") -> Augmentation:
    """Return a function that pads an image and crops a random window of the original size.

    Images are `[height, width]` or `[height, width, channels]`, of any dtype.

    Args:
      padding: pixels added on every side.
      fill: values of the padding: "zeros" (before normalisation, as in the papers) or "reflect".

    References:
      He et al. 2016, Deep Residual Learning, section 4.2.

    >>> crop = random_crop(padding=1)
    >>> crop(jax.random.key(0), jnp.ones((32, 32, 3), jnp.uint8)).shape
    (32, 32, 3)
    """
    checks.whole("padding", padding, 0)
    checks.one_of("fill", fill, ("zeros", "reflect"))

    def crop(key: Any, image: Any) -> Array:
        image = _image("random_crop", image)
        if fill == "reflect" and padding >= min(image.shape[:2]):
            raise ValueError(
                f"random_crop: padding={padding} reflects beyond an image of {image.shape[:2]}."
            )
        widths = [(padding, padding)] * 2 + [(0, 0)] * (image.ndim - 2)
        padded = jnp.pad(image, widths, mode="constant" if fill == "zeros" else "reflect")
        row, column = jax.random.randint(key, (2,), 0, 2 * padding + 1)
        start = (row, column, *(0,) * (image.ndim - 2))
        return lax.dynamic_slice(padded, start, image.shape)

    return crop


def random_flip(*, probability: Number = 0.5) -> Augmentation:
    """Return a function that mirrors an image left to right at random (shapes: `random_crop`).

    >>> flip = random_flip(probability=1.0)
    >>> flip(jax.random.key(0), jnp.array([[1, 2, 3]]))
    Array([[3, 2, 1]], dtype=int32)
    """
    checks.between("probability", probability, 0, 1)

    def flip(key: Any, image: Any) -> Array:
        image = _image("random_flip", image)
        is_mirrored = jax.random.bernoulli(key, jnp.asarray(probability, float))  # no integer
        return jnp.where(is_mirrored, image[:, ::-1], image)

    return flip


def random_zoom(*, smallest: Number = 0.5, largest: Number = 2.0) -> Augmentation:
    """Return a function that scales an image by a random factor, at a random position.

    The factor is log-uniform. Above 1, the result is a window of the image, enlarged; below 1, it
    is the whole image, made smaller, among zeros. It has the size of the image. Every pixel of the
    result is the nearest pixel of the image, so that label maps keep their classes.

    Args:
      smallest, largest: the range of the factor.

    >>> zoom = random_zoom(smallest=2.0, largest=2.0)
    >>> zoom(jax.random.key(0), jnp.array([[7, 7], [7, 7]]))
    Array([[7, 7],
           [7, 7]], dtype=int32)
    """
    checks.above("smallest", smallest, 0)
    checks.at_least("largest", largest, smallest)

    def zoom(key: Any, image: Any) -> Array:
        image = _image("random_zoom", image)
        of_factor, of_place = jax.random.split(key)
        ends = jnp.log(smallest), jnp.log(largest)
        factor = jnp.exp(jax.random.uniform(of_factor, (), minval=ends[0], maxval=ends[1]))
        places = jax.random.uniform(of_place, (2,))
        for axis in (0, 1):
            size = image.shape[axis]
            start = (size - size / factor) * places[axis]
            nearest = jnp.floor(start + jnp.arange(0.5, size) / factor).astype(jnp.int32)
            inside = (nearest >= 0) & (nearest < size)
            image = jnp.take(image, jnp.clip(nearest, 0, size - 1), axis)
            others = [1 if other != axis else size for other in range(image.ndim)]
            image = jnp.where(inside.reshape(others), image, jnp.zeros_like(image))
        return image

    return zoom


_GREY = (0.299, 0.587, 0.114)  # shares of red, green and blue, ITU-R BT.601


def random_color(
    *, brightness: Number = 0.5, contrast: Number = 0.5, saturation: Number = 0.5
) -> Augmentation:
    r"""Return a function that randomly changes the colors of an image `[height, width, 3]`.

    With a factor $f$ drawn uniformly from [1 - option, 1 + option] for each step, in this order:

    $$x \leftarrow f x, \quad x \leftarrow f x + (1 - f)\,\overline{g(x)}, \quad
    x \leftarrow f x + (1 - f)\,g(x)$$

    $g(x)$ is the grey of each pixel, .299 red + .587 green + .114 blue, and $\overline{g(x)}$ its
    mean over the image. The results are clipped to [0, 255]. Integers are rounded at the end.
    Labels do not change, so it belongs into `on_inputs`, also where `on_pairs` moves pixels.

    Args:
      brightness, contrast, saturation: the largest change of each factor, in [0, 1].

    References:
      Tian et al. 2021, Recall Loss, whose released code changes colors by half.

    >>> darker = random_color(brightness=1.0, contrast=0.0, saturation=0.0)
    >>> darker(jax.random.key(1), jnp.full((1, 1, 3), 100, jnp.uint8)).shape
    (1, 1, 3)
    """
    for name, value in dict(locals()).items():
        checks.between(name, value, 0, 1)

    def change(key: Any, image: Any) -> Array:
        image = jnp.asarray(image)
        if image.ndim != 3 or image.shape[-1] != 3:
            raise ValueError(f"random_color: an image is [height, width, 3], got {image.shape}.")
        draws = 2 * jax.random.uniform(key, (3,), jnp.float32) - 1
        bright, strong = 1 + draws[0] * brightness, 1 + draws[1] * contrast
        rich = 1 + draws[2] * saturation
        x = jnp.clip(bright * image.astype(jnp.float32), 0, 255)
        x = jnp.clip(strong * x + (1 - strong) * jnp.mean(_grey(x)), 0, 255)
        x = jnp.clip(rich * x + (1 - rich) * _grey(x), 0, 255)
        return (jnp.round(x) if jnp.issubdtype(image.dtype, jnp.integer) else x).astype(image.dtype)

    return change


def _grey(image: Array) -> Array:
    """Return the grey of each pixel, `[height, width, 1]`."""
    shares = jnp.asarray(_GREY, jnp.float32).reshape(1, 1, 3)
    return jnp.sum(image * shares, axis=-1, keepdims=True)


def compose(*augmentations: Augmentation) -> Augmentation:
    """Return a function that applies the augmentations in order, each with its own key.

    >>> twice = compose(random_flip(probability=1.0), random_flip(probability=1.0))
    >>> twice(jax.random.key(0), jnp.array([[1, 2, 3]]))
    Array([[1, 2, 3]], dtype=int32)
    """

    def augment(key: Any, inputs: Any) -> Any:
        keys = jax.random.split(key, max(len(augmentations), 1))
        for augmentation, its_key in zip(augmentations, keys, strict=False):
            inputs = augmentation(its_key, inputs)
        return inputs

    return augment


def on_inputs(augmentation: Augmentation) -> Callable[[Any, Examples], Examples]:
    """Return a function that augments the inputs of an example, and keeps labels and weights.

    >>> flip = on_inputs(random_flip(probability=1.0))
    >>> flip(jax.random.key(0), Examples(jnp.array([[1, 2, 3]]), 7)).inputs
    Array([[3, 2, 1]], dtype=int32)
    """

    def augment(key: Any, example: Examples) -> Examples:
        return example._replace(inputs=augmentation(key, example.inputs))

    return augment


def on_pairs(augmentation: Augmentation) -> Callable[[Any, Examples], Examples]:
    """Return a function that augments inputs, label map and weights alike, with the same key.

    Pixels that a crop adds have weight 0; with `fill="reflect"` they have labels and weights.

    Args:
      augmentation: the augmentation of one image, such as `random_crop()`; it must move pixels
        without changing their values, since labels are classes. Changes of color go into
        `on_inputs`.

    >>> image, label_map = jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[0, 1, 2]])
    >>> flip = on_pairs(random_flip(probability=1.0))
    >>> flip(jax.random.key(0), Examples(image, label_map)).labels
    Array([[2, 1, 0]], dtype=int32)
    """

    def augment(key: Any, example: Examples) -> Examples:
        labels = jnp.asarray(example.labels)
        weights = jnp.ones(()) if example.weights is None else jnp.asarray(example.weights)
        if not weights.ndim:  # one weight for all labels of the example
            weights = jnp.full(labels.shape, weights)
        for leaf in jax.tree.leaves((example.inputs, weights)):
            if jnp.shape(leaf)[: labels.ndim] != labels.shape:
                raise ValueError(
                    "on_pairs: inputs and weights must have the height and width of the label map"
                    f" {labels.shape}, got {jnp.shape(leaf)}."
                )
        example = Examples(example.inputs, labels, weights)
        return jax.tree.map(functools.partial(augmentation, key), example)

    return augment


def mixup(alpha: Number) -> Callable[..., tuple[PyTree, Array, Array]]:
    r"""Return a function that mixes a training batch: $\lambda x_a + (1 - \lambda) x_b$.

    Args:
      alpha: parameter of the Beta distribution of $\lambda$, which is drawn once per batch; 0.2 to
        1 in the papers.

    Returns:
      `(key of the step, keys of the examples, mask, inputs, labels, axis_name)` -> mixed inputs,
      the labels of the partners b, $\lambda$. Called with weights as labels, it returns the
      weights of the same partners.

    References:
      Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization.
      Thulasidasan et al. 2019, On Mixup Training: Improved Calibration and Predictive
      Uncertainty.
    """
    checks.above("alpha", alpha, 0)

    def mix(
        key: Any, keys: Any, mask: Any, inputs: PyTree, labels: Any, axis_name: AxisName
    ) -> tuple[PyTree, Array, Array]:
        # Derive new keys, because augmentation has already used the keys of the examples.
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, _MIXUP)
        partners = mixup_partners(keys, mask, axis_name)
        everything = jax.tree.map(lambda leaf: gather(leaf, axis_name), (inputs, labels))
        others, other_labels = jax.tree.map(lambda leaf: leaf[partners], everything)
        share = mixup_lambda(jax.random.fold_in(key, _MIXUP), alpha)
        return mixed(inputs, others, share), other_labels, share

    return mix


def mixup_lambda(key: Any, alpha: Number) -> Scalar:
    r"""Draw the mixing weight of a batch, $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$.

    Every device must use the same key.

    References:
      Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization.
    """
    checks.above("alpha", alpha, 0)
    return jax.random.beta(key, alpha, alpha)


def mixup_partners(
    keys: Any, mask: Bool[Array, " rows"], axis_name: AxisName = None
) -> Integer[Array, " rows"]:
    """Draw a partner for every example: a random permutation of the whole batch.

    Each example draws two numbers from its own key. The example of rank r by the first number is
    paired with the example of rank r by the second, so all permutations are equally likely. Keys
    belong to examples and not to rows, so the pairs depend neither on the number of devices nor on
    the padding.

    Args:
      keys: one key per row, derived from the number of its example.
      mask: True for rows that are examples; padding rows are paired with each other.
      axis_name: the axis over which devices share the batch.

    Returns:
      For each row of this device, the index of its partner in the whole batch, that is in
      `lax.all_gather(inputs, axis_name, tiled=True)` if there is an axis.

    References:
      Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization.

    >>> keys = jax.random.split(jax.random.key(0), 5)
    >>> partners = mixup_partners(keys, jnp.array([True, True, False, True, True]))
    >>> int(partners[2]), sorted(partners.tolist())
    (2, [0, 1, 2, 3, 4])
    """
    draws = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)
    rows, device = len(mask), jnp.int32(0)
    if axis_name is not None:
        device = lax.axis_index(axis_name)
        draws, mask = lax.all_gather((draws, mask), axis_name, tiled=True)
    by_first = jnp.lexsort((draws[:, 0], ~mask))
    by_second = jnp.lexsort((draws[:, 1], ~mask))
    partners = jnp.zeros_like(by_first).at[by_first].set(by_second, unique_indices=True)
    return lax.dynamic_slice_in_dim(partners, device * rows, rows)


def mixed(inputs: PyTree, partner_inputs: PyTree, lam: Number) -> PyTree:
    r"""Mix inputs or one-hot labels with their partners, $\lambda a + (1 - \lambda) b$.

    Args:
      inputs: prepared inputs, or labels as distributions: a tree of floating-point arrays.
      partner_inputs: the same tree for the partners.
      lam: the weight of `inputs`.

    >>> mixed(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]), 0.75)
    Array([0.75, 0.25], dtype=float32)
    """

    def mix(leaf: Any, partner: Any) -> Array:
        leaf, partner = jnp.asarray(leaf), jnp.asarray(partner)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"mixed: arrays must be floating-point, got {leaf.dtype}: prepare the inputs and"
                " make the labels one-hot first."
            )
        share = jnp.asarray(lam, leaf.dtype)
        return share * leaf + (1 - share) * partner

    return jax.tree.map(mix, inputs, partner_inputs)
