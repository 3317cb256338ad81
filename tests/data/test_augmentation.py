"""Augmentation, mixup and Gaussian noise against plain NumPy, on one device and on eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from calib_jax import data
from calib_jax.core.examples import InMemory

KEYS = jax.random.split(jax.random.key(0), 2000)


@pytest.mark.parametrize(("fill", "mode"), [("zeros", "constant"), ("reflect", "reflect")])
def test_a_crop_is_one_of_all_windows(fill, mode):
    padding, image = 2, np.arange(1, 61, dtype=np.uint8).reshape(5, 4, 3)
    padded = np.pad(image, [(padding, padding)] * 2 + [(0, 0)], mode=mode)
    offsets = [(row, column) for row in range(5) for column in range(5)]
    windows = [padded[row : row + 5, column : column + 4].tobytes() for row, column in offsets]
    assert len(set(windows)) == len(windows)
    crop = jax.jit(jax.vmap(data.random_crop(padding=padding, fill=fill), (0, None)))
    crops = np.asarray(crop(KEYS, image))
    assert crops.dtype == np.uint8
    counts = np.bincount([windows.index(one.tobytes()) for one in crops], minlength=25)
    assert scipy.stats.chisquare(counts).pvalue > 1e-6  # each of them, equally often


def test_a_flip_mirrors_half_of_the_images():
    image = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)
    flips = np.asarray(jax.jit(jax.vmap(data.random_flip(), (0, None)))(KEYS, image))
    mirrored = np.array([np.array_equal(one, image[:, ::-1]) for one in flips])
    same = np.array([np.array_equal(one, image) for one in flips])
    assert (mirrored ^ same).all()
    assert abs(mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(KEYS))


def test_a_zoom_takes_the_nearest_pixel_of_a_random_window():
    image = np.arange(1, 17, dtype=np.uint8).reshape(4, 4)
    zoom = jax.jit(jax.vmap(data.random_zoom(smallest=2.0, largest=2.0), (0, None)))
    larger = np.asarray(zoom(KEYS, image)).astype(int)
    assert larger.min() > 0  # a window of the image, wholly
    rows, columns = np.divmod(larger - 1, 4)
    assert (rows == rows[:, :, :1]).all()
    assert (columns == columns[:, :1]).all()
    # The window of 2 x 2 starts at u in [0, 2), and its pixel i is that around u + (i + 1/2) / 2.
    for pixels in (rows[:, :, 0], columns[:, 0]):
        assert (
            scipy.stats.chisquare(
                np.bincount(pixels[:, 0], minlength=3), len(KEYS) * np.array([0.375, 0.5, 0.125])
            ).pvalue
            > 1e-6
        )
        assert ((pixels[:, 2:] - pixels[:, :2]) == 1).all()


def test_the_factor_of_a_zoom_is_log_uniform():
    image = np.ones((40, 40, 1), np.uint8)
    zoom = jax.jit(jax.vmap(data.random_zoom(smallest=0.25, largest=1.0), (0, None)))
    width = np.asarray(zoom(KEYS, image)).any(axis=1).sum(axis=(1, 2))
    logs = np.log2(width / 40)
    assert scipy.stats.kstest(logs, "uniform", (-2, 2)).statistic < 0.08  # widths are whole numbers


def test_a_zoom_below_one_is_the_whole_image_among_zeros():
    image = np.arange(1, 17, dtype=np.uint8).reshape(4, 4, 1)
    zoom = jax.jit(jax.vmap(data.random_zoom(smallest=0.5, largest=0.5), (0, None)))
    smaller = np.asarray(zoom(KEYS, image))[..., 0].astype(int)
    assert ((smaller > 0).sum(axis=(1, 2)) == 4).all()  # every second pixel of both axes
    left = (smaller > 0).any(axis=1).argmax(axis=1)
    # The edge is at u in [0, 2]; a pixel is inside if its middle is.
    expected = len(KEYS) * np.array([0.25, 0.5, 0.25])
    assert scipy.stats.chisquare(np.bincount(left, minlength=3), expected).pvalue > 1e-6
    for picture in smaller[:20]:
        corner = picture[picture > 0].reshape(2, 2)
        assert corner[0, 1] - corner[0, 0] == 2
        assert corner[1, 0] - corner[0, 0] == 8


def met(partners, examples):
    """Who meets whom: pairs of the numbers of examples, those of padding left out."""
    pairs = {
        (int(own), int(examples[partner]))
        for own, partner in zip(examples, np.ravel(partners), strict=True)
        if own >= 0
    }
    assert len(pairs) == sum(examples >= 0)
    return pairs


def test_partners_are_those_of_one_device_whatever_the_devices_and_the_padding():
    def keys_of(examples):
        return jax.vmap(lambda i: jax.random.fold_in(KEYS[0], i))(examples)

    examples = np.arange(21)
    alone = met(data.mixup_partners(keys_of(examples), jnp.ones(21, bool)), examples)
    assert {own for own, _ in alone} == {partner for _, partner in alone} == set(range(21))
    padded = np.concatenate([examples, -np.ones(3, int)])  # at the end, as a loop pads
    within = np.insert(examples, [0, 7, 7], -1)  # and anywhere else
    spread = jax.pmap(
        lambda keys, mask: data.mixup_partners(keys, mask, axis_name="batch"), axis_name="batch"
    )
    for layout in (padded, within):
        keys, mask = keys_of(layout), jnp.asarray(layout >= 0)
        one = data.mixup_partners(keys, mask)
        eight = spread(keys.reshape(8, 3), mask.reshape(8, 3))
        np.testing.assert_array_equal(eight.reshape(-1), one)
        assert met(one, layout) == alone
        # Padding meets padding, so that no example is mixed with what is not there.
        assert (layout[np.asarray(one)][layout < 0] < 0).all()


def test_all_permutations_are_equally_likely():
    # Of 3 examples in 4 rows: 6 permutations, the identity among them.
    mask = jnp.array([True, False, True, True])
    keys = jax.random.split(jax.random.key(1), (3000, 4))
    partners = jax.jit(jax.vmap(data.mixup_partners, (0, None)))(keys, mask)
    permutations, counts = np.unique(np.asarray(partners), axis=0, return_counts=True)
    assert len(permutations) == 6
    assert (permutations[:, 1] == 1).all()
    assert scipy.stats.chisquare(counts).pvalue > 1e-6


def test_mixing_keeps_dtypes_and_goes_through_trees():
    own = {"x": jnp.array([2.0, 4.0], jnp.bfloat16), "q": jnp.array([[1.0, 0.0]])}
    other = {"x": jnp.array([6.0, 0.0], jnp.bfloat16), "q": jnp.array([[0.0, 1.0]])}
    result = data.mixed(own, other, jnp.float32(0.25))
    assert result["x"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(result["x"].astype(jnp.float32), [5.0, 1.0])
    np.testing.assert_array_equal(result["q"], [[0.25, 0.75]])
    with pytest.raises(TypeError, match="got uint8: prepare"):
        data.mixed(jnp.zeros(2, jnp.uint8), jnp.zeros(2, jnp.uint8), 0.5)


def test_colors_by_the_formula():
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    change = data.random_color(brightness=0.3, contrast=0.5, saturation=0.9)
    seen = []
    for seed in range(3):
        key = jax.random.key(seed)
        # The factors are the only randomness.
        factors = 1 + (2 * np.asarray(jax.random.uniform(key, (3,)), float) - 1) * [0.3, 0.5, 0.9]
        x = np.clip(factors[0] * image.astype(float), 0, 255)
        grey = x @ [0.299, 0.587, 0.114]
        x = np.clip(factors[1] * x + (1 - factors[1]) * grey.mean(), 0, 255)
        grey = (x @ [0.299, 0.587, 0.114])[..., None]
        x = np.clip(factors[2] * x + (1 - factors[2]) * grey, 0, 255)
        actual = change(key, image)
        assert actual.dtype == np.uint8
        # Float32 may round a half to the other side.
        assert np.abs(np.asarray(actual, float) - x).max() <= 0.501
        seen.append(np.asarray(actual))
    assert not np.array_equal(seen[0], seen[1])
    still = data.random_color(brightness=0, contrast=0, saturation=0)
    np.testing.assert_array_equal(still(jax.random.key(0), image), image)
    with pytest.raises(ValueError, match=r"an image is \[height, width, 3\], got \(4, 5\)"):
        change(jax.random.key(0), image[..., 0])


def grey_images(value, brightest=255, dtype=np.uint8):
    images = np.full((40, 16, 16, 3), value * brightest).astype(dtype)
    return InMemory(images, np.arange(40) % 10)


def test_pixels_stay_on_the_scale_and_labels_stay():
    for value, mean in ((0.0, 0.04), (1.0, 0.96)):  # half of it is cut: sigma / sqrt(2 pi)
        noisy = data.gaussian_noise(grey_images(value, 16), brightest=16)
        assert noisy.inputs.min() >= 0
        assert noisy.inputs.max() <= 16
        assert np.mean(noisy.inputs / 16) == pytest.approx(mean, abs=0.03)
        np.testing.assert_array_equal(noisy.labels, np.arange(40) % 10)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_noise_of_an_example_is_that_of_one_draw(dtype):
    """However many examples are read at a time: 1,500 are several reads."""
    shape = (1500, 16, 16, 3)
    images = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    weights = np.linspace(0, 1, 1500)
    source = InMemory(images, np.arange(1500) % 10, weights)
    noisy = data.gaussian_noise(source, severity=2, seed=7)
    noise = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    expected = np.clip(images.astype(np.float32) / 255 + 0.06 * noise, 0, 1) * 255
    np.testing.assert_array_equal(noisy.inputs, expected.astype(dtype))
    np.testing.assert_array_equal(noisy.labels, source.labels)
    np.testing.assert_array_equal(noisy.weights, weights)


def test_an_image_and_its_label_map_share_their_crop(x64):
    """Each label is the value of its pixel, and stays so; pixels from outside have weight 0."""
    image = np.arange(1, 13).reshape(3, 4)
    source = InMemory(
        np.tile(image[None, ..., None], (8, 1, 1, 1)), np.tile(image[None], (8, 1, 1))
    )
    crop = data.compose(data.random_crop(padding=2), data.random_flip())
    augment = jax.jit(jax.vmap(data.on_pairs(crop)))
    keys = jax.random.split(jax.random.key(3), 8)
    inputs, labels, weights = augment(keys, source.examples)
    np.testing.assert_array_equal(inputs[..., 0], labels)
    np.testing.assert_array_equal(weights, labels > 0)
    assert len({np.asarray(one).tobytes() for one in labels}) > 4
    alone, kept, none = jax.jit(jax.vmap(data.on_inputs(crop)))(keys, source.examples)
    np.testing.assert_array_equal(alone, inputs)  # the same stream of keys
    np.testing.assert_array_equal(kept, source.labels)
    assert none is None
