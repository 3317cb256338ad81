r"""Size and power of the procedure, by simulation with all sources of noise.

    python -m experiments.papers.judge.simulation

A block has a cross-entropy and 19 losses with three seeds each. The root-CE2 of a run, in points,
has noise of its training seed (.67, as measured on ResNet-8), of the test and of the validation
examples (.3 each, of which half is shared by all runs and cancels). In the mixed scenarios, ten
losses equal cross-entropy and the others are better by .5, 1, 2 or 3 points. In the unequal ones,
the deviation between seeds differs by a factor of up to four between losses.
"""

import argparse
import json
import math
import pathlib
import time

import numpy as np
import scipy.stats

from calib_jax import inference
from calib_jax.train.folder import files
from experiments.papers.judge import pooling, procedure, rules
from experiments.papers.judge.values import Value
from experiments.running import provenance

PATH = pathlib.Path("experiments/results/papers/judge/simulation.json")
TIMES, LOSSES, SEEDS = 2_000, 20, 3
OF_SEED, OF_ROWS = 0.67, 0.3
EFFECTS = np.array([0.0] * 10 + [0.5] * 3 + [1.0] * 2 + [2.0] * 2 + [3.0] * 2)
METHODS = ("own seeds, Holm", "pooled, Holm", "pooled, BH")
SIZE = rules.SIZE


def main() -> None:
    """Simulate all scenarios in a minute, and write the results."""
    argparse.ArgumentParser(description=main.__doc__).parse_args()
    began = time.monotonic()
    scenarios = {
        f"{effects}, {spread} variances": simulate(
            EFFECTS * (effects == "mixed"), spread == "unequal", seed
        )
        for seed, (effects, spread) in enumerate(
            (effects, spread) for effects in ("null", "mixed") for spread in ("equal", "unequal")
        )
    }
    record = {
        "times": TIMES,
        "losses": LOSSES,
        "seeds": SEEDS,
        "scenarios": scenarios,
        "seconds": round(time.monotonic() - began, 1),
        "provenance": provenance.published(),
    }
    PATH.parent.mkdir(exist_ok=True)
    files.replace(PATH, json.dumps(record, indent=1) + "\n")


def simulate(
    effects: np.ndarray, unequal: bool, seed: int, times: int = TIMES
) -> dict[str, dict[str, float]]:
    """Return the shares of rejections of every method.

    "a false rejection" is the share of blocks with one or more; "false among rejections" is the
    mean share of false ones among the rejections of a block.
    """
    draws = np.random.default_rng(seed)
    deviations = np.full(LOSSES, OF_SEED)
    if unequal:
        deviations = OF_SEED * 2.0 ** np.linspace(-1, 1, LOSSES)
        draws.shuffle(deviations[1:])
    rejected = np.array([_block(draws, effects, deviations) for _ in range(times)])
    false = rejected[:, :, effects == 0]
    found = rejected.sum(axis=2)
    result = {}
    for number, method in enumerate(METHODS):
        shares = {"a false rejection": float(np.mean(false[:, number].any(axis=1)))}
        wrong = false[:, number].sum(axis=1) / np.maximum(found[:, number], 1)
        shares["false among rejections"] = float(np.mean(wrong))
        for effect in np.unique(effects[effects > 0]):
            power = float(np.mean(rejected[:, number, effects == effect]))
            shares[f"power at {effect:g} points"] = power
        result[method] = {name: round(share, 4) for name, share in shares.items()}
    return result


def _block(draws: np.random.Generator, effects: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Draw a block and judge it; return `[methods, losses - 1]` rejections."""
    table = deviations[:, None] * draws.normal(size=(LOSSES, SEEDS))
    table[1:] -= effects[:, None]
    shared = OF_ROWS / math.sqrt(2)
    for _ in ("test", "validation"):  # the same examples for all seeds of a loss
        table += shared * draws.normal() + shared * draws.normal(size=(LOSSES, 1))
    own, together = [], []
    pooled = pooling.pooled(table)
    of_examples = 2 * 2 * shared**2
    for loss in range(1, LOSSES):
        differences = table[0] - table[loss]
        of_seeds = float(np.var(differences, ddof=1)) / SEEDS
        deviation = math.sqrt(of_seeds + of_examples)
        alone = Value(float(differences.mean()), deviation, SEEDS - 1, of_examples)
        own.append(alone.p_above())
        if pooled.homogeneity >= procedure.HOMOGENEOUS:
            deviation = math.sqrt(2 * pooled.variance / SEEDS + of_examples)
            alone = Value(alone.value, deviation, pooled.freedom, of_examples)
        together.append(alone.p_above())
    of_shares = scipy.stats.false_discovery_control(together)
    return np.array([inference.holm(own), inference.holm(together), of_shares]) <= SIZE


if __name__ == "__main__":
    main()
