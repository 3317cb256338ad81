"""Metrics `(logits, labels, weights=None, *, options) -> value` with mergeable statistics.

    metrics.ece(logits, labels)                      one number
    metrics.values_of({...}, logits, labels)         several, in one pass
    metrics.ece.stat(...) + metrics.ece.stat(...)    statistics merge; ece.value(stat) at the end
    metrics.Stream({...})                            batch by batch
    metrics.bootstrap(metrics.ece, logits, labels, key=key)         resampled values
    metrics.catalogue()                              every metric by name

Each file of this subpackage defines one family. To add a metric, decorate one function with its
terms (see `metric`); the catalogue then lists it by name.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_subpackage
from calib_jax.core.names import no_attribute
from calib_jax.metrics.contract import Metric as Metric
from calib_jax.metrics.contract import catalogue as catalogue
from calib_jax.metrics.contract import metric as metric
from calib_jax.metrics.contract import named as named
from calib_jax.metrics.contract import ratio as ratio
from calib_jax.metrics.contract import register as register
from calib_jax.metrics.contract import stats_of as stats_of
from calib_jax.metrics.contract import values_of as values_of
from calib_jax.metrics.contract import values_of_stats as values_of_stats

_names = load_subpackage(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # With this function, type checkers also accept the names that `load_subpackage` adds.
    raise no_attribute(__name__, name, __all__)
