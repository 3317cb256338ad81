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
    np.testing.assert_array_equal(data.random_crop(padding=0, fill=fill)(KEYS[0], image), image)


def test_a_flip_mirrors_half_of_the_images():
    image = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)
    flips = np.asarray(jax.jit(jax.vmap(data.random_flip(), (0, None)))(KEYS, image))
    mirrored = np.array([np.array_equal(one, image[:, ::-1]) for one in flips])
    same = np.array([np.array_equal(one, image) for one in flips])
    assert (mirrored ^ same).all()
    assert abs(mirrored.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(KEYS))


@pytest.mark.parametrize(("smallest", "largest"), [(0.5, 2.0), (0.25, 0.25)])
def test_a_zoom_takes_the_nearest_pixel_of_a_random_window(smallest, largest):
    """The factor is log-uniform, and the places uniform; what lies outside is 0."""
    image = np.arange(1, 121, dtype=np.uint8).reshape(10, 6, 2)
    zoom = jax.jit(data.random_zoom(smallest=smallest, largest=largest))
    for key in KEYS[:30]:
        of_factor, of_place = jax.random.split(key)
        between = np.log([smallest, largest])
        factor = np.exp(np.interp(jax.random.uniform(of_factor), [0, 1], between))
        expected, sure = image, []
        for axis, place in enumerate(np.asarray(jax.random.uniform(of_place, (2,)), float)):
            size = image.shape[axis]
            start = (size - size / factor) * place
            padded = np.pad(expected, [(99, 99) if one == axis else (0, 0) for one in range(3)])
            middles = start + (np.arange(size) + 0.5) / factor
            expected = np.take(padded, np.floor(middles).astype(int) + 99, axis)
            sure.append(np.abs(middles - np.round(middles)) > 1e-4)  # float32 may round others
        sure = np.ix_(*sure)
        np.testing.assert_array_equal(np.asarray(zoom(key, image))[sure], expected[sure])


def test_a_batch_is_mixed_by_one_share():
    mix, labels = jax.jit(lambda *batch: data.mixup(0.4)(*batch, None)), np.arange(6)
    batch = KEYS[0], KEYS[1:7], np.ones(6, bool), np.arange(6.0, dtype=np.float32)[:, None]
    inputs, others, share = mix(*batch, labels)
    assert sorted(others.tolist()) == labels.tolist() != others.tolist()
    np.testing.assert_allclose(inputs[:, 0], share * labels + (1 - share) * others, rtol=1e-6)
    np.testing.assert_array_equal(mix(*batch, 10 * labels)[1], 10 * others)  # the same ones
    shares = jax.jit(jax.vmap(lambda key: data.mixup_lambda(key, 0.4)))(KEYS)
    assert scipy.stats.kstest(shares, scipy.stats.beta(0.4, 0.4).cdf).pvalue > 1e-6


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
    keys_of = jax.jit(jax.vmap(lambda i: jax.random.fold_in(KEYS[0], i)))
    on_one = jax.jit(data.mixup_partners)
    examples = np.arange(21)
    alone = met(on_one(keys_of(examples), np.ones(21, bool)), examples)
    assert {own for own, _ in alone} == {partner for _, partner in alone} == set(range(21))
    padded = np.concatenate([examples, -np.ones(3, int)])  # at the end, as a loop pads
    within = np.insert(examples, [0, 7, 7], -1)  # and anywhere else
    spread = jax.pmap(
        lambda keys, mask: data.mixup_partners(keys, mask, axis_name="batch"), axis_name="batch"
    )
    for layout in (padded, within):
        keys, mask = keys_of(layout), layout >= 0
        one = on_one(keys, mask)
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
    image[:2] = np.where(image[:2] < 128, 0, 255)
    change = jax.jit(data.random_color(brightness=0.3, contrast=0.5, saturation=0.9))
    seen = []
    for seed in range(8):
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
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(change(key, image), actual)
    still = data.random_color(brightness=0, contrast=0, saturation=0)
    np.testing.assert_array_equal(still(jax.random.key(0), image), image)
    with pytest.raises(ValueError, match=r"an image is \[height, width, 3\], got \(4, 5\)"):
        change(jax.random.key(0), image[..., 0])


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, {}), (np.float32, {"brightest": 16})])
def test_the_noise_of_an_example_is_that_of_one_draw(dtype, scale):
    """However many examples are read at a time: 1,500 are several reads."""
    shape, brightest = (1500, 16, 16, 3), scale.get("brightest", 255)
    images = np.random.default_rng(0).integers(0, 1 + brightest, shape).astype(dtype)
    weights = np.linspace(0, 1, 1500)
    source = InMemory(images, np.arange(1500) % 10, weights)
    noise = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    for severity, sigma in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1):
        noisy = data.gaussian_noise(source, severity=severity, seed=7, **scale)
        expected = np.clip(images.astype(np.float32) / brightest + sigma * noise, 0, 1) * brightest
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
    both = lambda *given: (data.on_pairs(crop)(*given), data.on_inputs(crop)(*given))  # noqa: E731
    keys = jax.random.split(jax.random.key(3), 8)
    of_pairs, (alone, kept, none) = jax.jit(jax.vmap(both))(keys, source.examples)
    inputs, labels, weights = of_pairs
    np.testing.assert_array_equal(inputs[..., 0], labels)
    np.testing.assert_array_equal(weights, labels > 0)
    assert len({np.asarray(one).tobytes() for one in labels}) > 4
    np.testing.assert_array_equal(alone, inputs)  # the same stream of keys
    np.testing.assert_array_equal(kept, source.labels)
    assert none is None
    of_rows = jax.vmap(data.on_pairs(crop))(keys, source.examples._replace(weights=np.arange(8.0)))
    np.testing.assert_array_equal(of_rows.weights, weights * np.arange(8.0)[:, None, None])
