"""Learning rates: the recorded ones of the papers' programs, and closed forms."""

import json
import pathlib

import numpy as np
import pytest

from calib_jax import train
from calib_jax.train import schedules

FILE = pathlib.Path(__file__).parents[1] / "golden" / "recipes.json"
RECORDED = {one["id"]: one for one in json.loads(FILE.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    ("name", "milestones"),
    [("lr_cifar_fc", (149, 249)), ("lr_tiny_fc", (39, 59)), ("lr_cifar_ada", (150, 250))],
)
def test_the_recorded_schedules(name, milestones, x64):
    lengths, rates = zip(*RECORDED[name]["rates"], strict=True)
    wanted = np.repeat(rates, lengths)
    assert len(wanted) == RECORDED[name]["hyperparameters"]["epochs"]
    rate = schedules.multi_step(0.1, milestones=milestones)
    np.testing.assert_allclose(rate(np.arange(len(wanted))), wanted, rtol=1e-12)
    steps = schedules.of_steps(rate, 352, per_epoch=True)
    for epoch in (*milestones, len(wanted) - 1):
        for step in (352 * epoch - 1, 352 * epoch, 352 * epoch + 351):
            assert float(steps(step)) == pytest.approx(wanted[step // 352], rel=1e-12)


def test_closed_forms(x64):
    t = np.array([0.0, 2.5, 5.0, 10.0])
    np.testing.assert_allclose(schedules.constant(0.3)(t), 0.3)
    np.testing.assert_allclose(schedules.exponential(2.0, factor=0.9)(t), 2 * 0.9**t)
    cosine = schedules.cosine(0.4, num_epochs=10, final=0.1)
    np.testing.assert_allclose(cosine(t), [0.4, 0.1 + 0.3 * (1 + np.sqrt(0.5)) / 2, 0.25, 0.1])
    poly = schedules.poly(0.4, num_epochs=10, power=2)
    np.testing.assert_allclose(poly(t), [0.4, 0.4 * 0.75**2, 0.1, 0.0], atol=1e-15)
    assert float(cosine(12.0)) == pytest.approx(0.1)
    assert float(poly(12.0)) == 0


@pytest.mark.parametrize(
    ("form", "wanted"), [("linear", [0.2, 0.6, 1.0, 1.0]), ("constant", [0.2, 0.2, 1.0, 1.0])]
)
def test_warm_up(form, wanted, x64):
    rate = schedules.warmed_up(schedules.constant(1.0), epochs=4, factor=0.2, form=form)
    np.testing.assert_allclose(rate(np.array([0.0, 2.0, 4.0, 5.0])), wanted)
    drop = schedules.warmed_up(schedules.multi_step(1.0, milestones=(5,)), epochs=4)
    np.testing.assert_allclose(drop(np.array([4.9, 5.0])), [1.0, 0.1])


def test_linear_and_inverse_square_root(x64):
    t = np.array([0.0, 2.5, 5.0, 10.0, 12.0])
    linear = train.schedule("linear", 0.4, num_epochs=10, final=0.1)
    np.testing.assert_allclose(linear(t), [0.4, 0.325, 0.25, 0.1, 0.1])
    # From 0 to the peak at 2, then down to 0 at 10.
    rising = train.warmed_up(
        train.schedule("linear", 0.4, num_epochs=10, start=2), epochs=2, factor=0
    )
    np.testing.assert_allclose(rising(np.array([0.0, 1, 2, 4, 10, 11])), [0, 0.2, 0.4, 0.3, 0, 0])
    decayed = train.schedule("inverse_sqrt", 0.4, start=2.5)
    np.testing.assert_allclose(decayed(t), [0.4, 0.4, 0.4 / np.sqrt(2), 0.2, 0.4 / np.sqrt(4.8)])
    transformer = train.warmed_up(train.schedule("inverse_sqrt", 1.0, start=4), epochs=4, factor=0)
    steps = np.arange(1, 20)
    wanted = 2 * np.minimum(steps**-0.5, steps * 4**-1.5)  # their equation 3, times sqrt(4)
    np.testing.assert_allclose(transformer(steps), wanted)


def test_warm_up_in_steps(x64):
    rate = train.of_steps(train.schedule("linear", 1.0, num_epochs=2), 10)
    warmed = train.warmed_up(rate, steps=4, factor=0.0)
    steps = np.arange(8)
    wanted = (1 - steps / 20) * np.minimum(steps / 4, 1)
    np.testing.assert_allclose(warmed(steps), wanted)
    for both in ({}, {"epochs": 1, "steps": 2}):
        with pytest.raises(ValueError, match="give either epochs or steps"):
            train.warmed_up(rate, **both)
