"""The benchmarks: their clock, their simulated data, and every command at a tiny size."""

import json

import jax
import numpy as np
import pytest
from absl import flags

from calib_jax import models
from experiments.benchmarks import simulated, timing, topologies, training
from tests.experiments import processes


def test_help_lists_the_flags_of_the_clock_that_a_benchmark_reads():
    for module, names in ((training, {"json", "rounds"}), (topologies, {"json"})):
        listed = flags.FLAGS.get_key_flags_for_module(module.__name__)
        assert names < {flag.name for flag in listed}


def test_calls_take_turns_and_slow_ones_are_timed_once():
    now, done = [0.0], []

    def call(name, seconds):
        def run():
            done.append(name)
            now[0] += seconds

        return run

    calls = {"quick": call("quick", 1.0), "slow": call("slow", 9.0)}
    seconds = timing.interleaved(calls, rounds=3, patience=5.0, clock=lambda: now[0])
    assert {name: list(spent) for name, spent in seconds.items()} == {
        "quick": [1.0, 1.0, 1.0],
        "slow": [9.0],
    }
    assert done.count("slow") == 2  # the first call compiles


def test_a_ratio_is_a_median_over_rounds_with_its_middle_half():
    spent = {"a": np.array([1.0, 2.0, 4.0]), "b": np.array([2.0, 4.0, 20.0])}
    row = timing.compared(spent, "a", shape="1x1")[1]
    assert row == {
        **{"shape": "1x1", "name": "b", "ms": 4000.0, "to": "a"},
        **{"ratio": 2.0, "low": 2.0, "high": 3.5},
    }


def test_the_truth_of_two_classes_is_that_of_an_integral():
    """The difference of two logits is normal with variance 2 x 1.5^2."""
    true = simulated.truth(2, 1.5, 2**16)
    margin = np.linspace(0, 15, 30_001)
    density = np.exp(-(margin**2) / 9)
    density /= density.sum()
    right, confidence = 1 / (1 + np.exp(-margin)), 1 / (1 + np.exp(-1.5 * margin))
    nll = -(right * np.log(confidence) + (1 - right) * np.log1p(-confidence))
    assert true["accuracy"] == pytest.approx(right @ density, abs=3e-3)
    assert true["nll"] == pytest.approx(nll @ density, abs=5e-3)
    bins = np.ceil(15 * confidence).astype(int)
    gap = np.bincount(bins, density * (confidence - right), 17)
    squared = np.square(gap) / np.maximum(np.bincount(bins, density, 17), 1e-12)
    assert true["ece"] == pytest.approx(np.abs(gap).sum(), abs=4e-4)
    assert true["squared_error"] == pytest.approx(squared.sum(), abs=1e-4)
    calibrated = simulated.truth(2, 1.0, 2**16)
    assert max(calibrated[name] for name in ("ece", "adaptive_ece", "squared_error")) < 1e-12


def test_confident_models_are_right_less_often_by_the_gap():
    logits, labels = simulated.confident(jax.random.key(0), 40_000, 5, 0.1)
    p = np.asarray(jax.nn.softmax(logits))
    hit = p.argmax(1) == np.asarray(labels)
    assert np.mean(p.max(1) - hit) == pytest.approx(0.1, abs=0.01)
    assert p.max(1).min() >= 0.94


def test_clusters_are_correlated_and_single_rows_calibrated():
    logits, labels = simulated.one_model(jax.random.key(1), 40_000, 4, True, 1.0)
    p = np.asarray(jax.nn.softmax(logits))
    residual = p.max(1) - (p.argmax(1) == np.asarray(labels))
    assert abs(residual.mean()) < 0.02
    means = residual.reshape(-1, simulated.CLUSTER_SIZE).mean(axis=1)
    assert np.var(means) > 2 * np.var(residual) / simulated.CLUSTER_SIZE


@pytest.mark.parametrize("draw", [simulated.sharper, simulated.equal_errors])
def test_pairs_have_equal_errors(draw):
    logits_a, logits_b, labels = draw(jax.random.key(2), 40_000, 3, False)
    gaps = []
    for logits in (logits_a, logits_b):
        p = np.asarray(jax.nn.softmax(logits))
        gaps.append(np.mean(p.max(1) - (p.argmax(1) == np.asarray(labels))))
    assert gaps[0] == pytest.approx(gaps[1], abs=0.015)


def test_our_loop_trains():
    loop = training.OurLoop("mlp", "cross_entropy", batch_size=2, steps=2, hidden=(8,))
    before = jax.tree.map(np.asarray, loop.state.params)
    loop()
    assert int(loop.state.step) == 2
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, loop.state.params)
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize("name", training.PLANS)
def test_the_plans_have_the_blocks_of_our_networks(name):
    """Parameters of the plan that the PyTorch network has, counted by hand."""
    (blocks, stem), bottleneck = training.PLANS[name], name == "resnet50"
    count, inputs = 27 * stem + 2 * stem, stem
    for stage, number in enumerate(blocks):
        width = stem * 2**stage
        for block in range(number):
            outputs = 4 * width if bottleneck else width
            if bottleneck:
                count += inputs * width + 9 * width**2 + width * outputs + 4 * width + 2 * outputs
                count += (inputs * outputs + 2 * outputs) * (block == 0)
            else:
                count += 9 * (inputs + width) * width + 4 * width
            inputs = outputs
    count += inputs * training.CLASSES + training.CLASSES
    module = models.named(name, num_classes=training.CLASSES)
    variables = jax.eval_shape(
        lambda: module.init(jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32), train=False)
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == count


COMMANDS = {
    "losses": ("--shapes=60x5", "--dtypes=float32", "--only=focal,mmce,neighbour_margin"),
    "metrics": ("--shapes=100x5", "--nopeers", "--resamples=10"),
    "training": ("--images=2", "--steps=1"),
    "coverage": ("--sets=2", "--examples=200", "--classes=2", "--only=two_models"),
    "questions": ("--sets=2", "--only=ranks"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_its_rows_and_writes_them(name, tmp_path):
    out = tmp_path / "results" / "rows.json"
    given = (*COMMANDS[name], "--rounds=1", f"--json={out}")
    output = processes.finish(f"benchmarks.{name}", *given)
    content = json.loads(out.read_text())
    assert len(output.strip().splitlines()) == 1 + len(content["rows"])
    assert f"experiments.benchmarks.{name}" in content["provenance"]["command"]


@pytest.mark.parametrize(
    ("name", "flag", "message"),
    [
        ("losses", "--shapes=8x", "must be EXAMPLESxCLASSES, such as 8192x100, got '8x'"),
        ("losses", "--only=fokal", "no objective is called 'fokal'; did you mean 'focal'?"),
        ("losses", "--dtypes=float64", "needs the environment variable JAX_ENABLE_X64=1"),
        ("losses", "--dtypes=float3", "got 'float3'; did you mean 'float32'?"),
        ("training", "--loss=fokal", "no objective is called 'fokal'; did you mean 'focal'?"),
        ("training", "--model=vit", "must be resnet20 or resnet50, got 'vit'"),
        ("gpu", "--rounds=1", "give --json=FILE for the results"),
        ("coverage", "--examples=1", "must be whole numbers of at least 2, got '1'"),
    ],
)
def test_a_wrong_flag_is_refused(name, flag, message):
    assert message in processes.finish(f"benchmarks.{name}", flag, code=2)


def test_kernels_of_a_compiled_program_are_counted():
    program = """
%fused (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %e = f32[4]{0} exponential(%a)
}
%body (b: (f32[4])) -> (f32[4]) {
  %b = (f32[4]{0}) parameter(0)
  %d = f32[4]{0} copy(%b)
  ROOT %t = (f32[4]{0}) tuple(%d)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %w = (f32[4]{0}) while(%f), condition=%other, body=%body
}
"""
    assert topologies.counted(program) == {"kernels": 2, "copies": 1}
