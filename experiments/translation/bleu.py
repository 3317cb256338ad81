"""BLEU and chrF of translations by sacrebleu, with intervals and paired tests over sentences."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Quality(NamedTuple):
    """A score of one system.

    Attributes:
      score: the score on all sentences, in percent.
      low, high: the score minus and plus half the width of the 95 % bootstrap interval.
      p_value: the two-sided p-value of the paired bootstrap against the first system, twice that
        of sacrebleu; 1 if both have the same score; None for the first.
    """

    score: float
    low: float
    high: float
    p_value: float | None


def qualities(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], num_resamples: int = 1000
) -> tuple[dict[str, dict[str, Quality]], dict[str, str]]:
    """Compute BLEU and chrF of systems that translated the same sentences.

    Whole sentences are resampled, the same sentences for all systems, with sacrebleu's seed.

    Args:
      systems: the translations of each system by name; the first is the baseline.
      references: the true translations.
      num_resamples: the number of bootstrap resamples.

    Returns:
      The scores by metric and system, and the signature of each metric.
    """
    metrics = require()
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        list(systems.items()),
        {"BLEU": metrics.BLEU(), "chrF": metrics.CHRF()},
        [list(references)],
        test_type="bs",
        n_samples=num_resamples,
    )
    signatures, columns = test()
    by_metric = {
        "chrF" if name.startswith("chrF") else name: {
            system: _quality(result, columns[name][0].score)
            for system, result in zip(systems, columns[name], strict=True)
        }
        for name in signatures  # sacrebleu's name for chrF includes the recall weight: chrF2
    }
    return by_metric, {name: str(text) for name, text in signatures.items()}


def _quality(result: Any, baseline: float) -> Quality:
    score, half = float(result.score), float(result.ci)
    p_value = result.p_value
    if p_value is not None:
        # sacrebleu counts one side (10 % of equally good systems are below .05), and gives its
        # smallest p-value where no resample differs.
        p_value = 1.0 if result.score == baseline else min(1.0, 2 * float(p_value))
    return Quality(score, score - half, score + half, p_value)


def require() -> Any:
    """Import sacrebleu's metrics; raise an error with the pip command if it is not installed."""
    try:
        from sacrebleu import metrics
    except ModuleNotFoundError as error:
        raise ImportError(
            "BLEU needs sacrebleu: pip install 'calib_jax[translation]', or pip install sacrebleu."
        ) from error
    return metrics
