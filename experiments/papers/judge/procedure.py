r"""The procedure by which trained networks are compared.

1. Runs are compared within a block: one network, data set and recipe, with the same seeds and test
   examples, and only the loss differs (`blocks.py`).
2. The variance between training seeds is pooled over the losses of the block (`pooling.py`). Of a
   squared calibration error it is that of the root (root-CE2), because the spread of CE2 itself
   grows with its size: a root of mean m and variance s^2 has a square of variance
   $4 m^2 s^2 + 2 s^4$. Where the test of homogeneity has a p-value below .05, the block is not
   pooled, and a comparison uses the variance of its own seeds. So do values of one loss alone, the
   same runs before and after a temperature, values of the logs, and networks of different blocks.
3. Test examples are shared by all runs of a block. Their variance is that of the U-statistic
   (`calib_jax/inference/residuals.py`), and the part that seeds and examples share counts once.
4. After the papers' temperature, the validation examples are random, too. They are resampled, in
   the same way for all runs, and every resample fits the temperature again. A temperature by NLL,
   and that of further measurements (noise, shift, pixels, tokens), stays as it was fitted.
5. p-values are one-sided, by the interval of Howe (`Value`). Holm's method adjusts all p-values of
   a source; Benjamini and Hochberg's, which bounds the share of false findings, stands beside.
"""

from collections.abc import Sequence

import numpy as np

from calib_jax.inference.residuals import Binned
from experiments.papers.judge import blocks, estimates
from experiments.papers.judge.blocks import Block, Part, Statistic
from experiments.papers.judge.estimates import Columns
from experiments.papers.judge.paired import Spread
from experiments.papers.judge.pooling import Pooled, variance_of_square
from experiments.papers.store.records import Trained

HOMOGENEOUS = 0.05  # the smallest p-value of homogeneity with which a block is pooled
PHASES: dict[Part, str] = {blocks.before: "before T", blocks.after: "after T"}
BINNED: dict[Statistic, str] = {
    estimates.squared_error: "CE2",
    estimates.adaptive_squared_error: "AdaCE2",
}


def spread(
    first: Sequence[Trained],
    second: Sequence[Trained],
    statistic: Statistic,
    parts: tuple[Part, Part],
) -> Spread:
    """Return what the procedure knows of the variance of a difference between two trainings.

    Args:
      first: runs of every seed.
      second: runs of the same seeds.
      statistic: what is compared.
      parts: which predictions of `first` and of `second` are compared.
    """
    commits = {run.about.get("commit") for run in (*first, *second)}
    of_seeds, notes = None, []
    block = _shared_block(first, second, statistic, parts)
    if block is not None:
        pooled = block.pooled(statistic, parts[0])
        if statistic in BINNED:
            _keep(block, f"{BINNED[statistic]} {PHASES[parts[0]]}", pooled)
        if pooled.homogeneity < HOMOGENEOUS:
            notes.append(f"own seeds: p of homogeneity {pooled.homogeneity:.1g}")
        else:
            commits |= block.commits
            notes.append(f"seeds pooled over {pooled.losses} losses")
            means = _means(first, statistic, parts[0]), _means(second, statistic, parts[0])
            variance = sum(
                pooled.variance if mean is None else variance_of_square(mean, pooled.variance)
                for mean in means
            )
            of_seeds = variance / len(first), pooled.freedom
    if len(commits) > 1:
        notes.append(f"runs of {len(commits)} commits")
    return Spread(of_seeds, _of_validation(first, second, statistic, parts), "; ".join(notes))


def _shared_block(
    first: Sequence[Trained],
    second: Sequence[Trained],
    statistic: Statistic,
    parts: tuple[Part, Part],
) -> Block | None:
    """Return the block of two trainings whose seeds can be pooled for a statistic."""
    block = first[0].block
    if block is None or block is not second[0].block or first is second:
        return None
    if parts[0] is not parts[1] or parts[0] not in PHASES:
        return None
    # Squared errors need columns alone. Other statistics can need the logits of compared records.
    has_columns = any(isinstance(run.test, Columns) for run in (*first, *second))
    needs_logits = parts[0] is blocks.after or not (statistic in BINNED or has_columns)
    members = block.with_logits() if needs_logits else block
    return members if len(members.runs) >= blocks.LOSSES else None


def _means(runs: Sequence[Trained], statistic: Statistic, part: Part) -> float | None:
    """Return the mean of a squared error over seeds; None for another statistic."""
    values = [statistic(part(run)) for run in runs]
    if not isinstance(values[0], Binned):
        return None
    return float(np.mean([value.value for value in values]))


def _keep(block: Block, name: str, pooled: Pooled) -> None:
    """Keep a pooled variance for the page, as the deviation in points."""
    block.used[f"{block.name}, {name}"] = {
        "losses": pooled.losses,
        "points": 100 * pooled.variance**0.5,
        "freedom": pooled.freedom,
        "homogeneity": pooled.homogeneity,
        "commits": len(block.commits),
    }


def _of_validation(
    first: Sequence[Trained],
    second: Sequence[Trained],
    statistic: Statistic,
    parts: tuple[Part, Part],
) -> float:
    """Resample the validation examples, where a part is after the papers' temperature."""
    total = np.zeros(estimates.RESAMPLES)
    for runs, part, sign in zip((first, second), parts, (1.0, -1.0), strict=True):
        if part is blocks.after:
            total += sign * np.mean([blocks.resampled(run, statistic) for run in runs], axis=0)
    return float(np.var(total, ddof=1))
