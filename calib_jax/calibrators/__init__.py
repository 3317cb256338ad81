"""Calibrators: pairs of `fit(logits, labels, weights=None)` and `apply(params, logits)`.

    params = calibrators.temperature.fit(logits, labels)
    calibrated = calibrators.temperature.apply(params, other_logits)
    params.state.name, params.state.nll_before, params.state.nll_after
    calibrators.catalogue()                              every calibrator by name
    calibrators.named("isotonic").fit(logits, labels)
    calibrators.named("histogram", num_bins=20).fit(logits, labels)
    calibrators.isotonic.fit(metrics.Stated(confidence, correct))     also of an event
    calibrators.save("t.npz", "temperature", params);  name, params = calibrators.load("t.npz")

Every file of this subpackage that defines `Params`, `fit` and `apply` is a calibrator (see
`contract.py`). `register` adds a calibrator of yours.
"""

from calib_jax.calibrators import bbq as bbq
from calib_jax.calibrators import beta as beta
from calib_jax.calibrators import bias_corrected_temperature as bias_corrected_temperature
from calib_jax.calibrators import dirichlet as dirichlet
from calib_jax.calibrators import ensemble_temperature as ensemble_temperature
from calib_jax.calibrators import histogram as histogram
from calib_jax.calibrators import isotonic as isotonic
from calib_jax.calibrators import matrix as matrix
from calib_jax.calibrators import platt as platt
from calib_jax.calibrators import sms as sms
from calib_jax.calibrators import svs as svs
from calib_jax.calibrators import temperature as temperature
from calib_jax.calibrators import vector as vector
from calib_jax.calibrators import venn_abers as venn_abers
from calib_jax.calibrators.parts.contract import State as State
from calib_jax.calibrators.parts.event import OfProbability as OfProbability
from calib_jax.calibrators.parts.event import OfScore as OfScore
from calib_jax.calibrators.parts.event import Scored as Scored
from calib_jax.calibrators.parts.members import catalogue as catalogue
from calib_jax.calibrators.parts.members import load as load
from calib_jax.calibrators.parts.members import named as named
from calib_jax.calibrators.parts.members import register as register
from calib_jax.calibrators.parts.members import save as save
from calib_jax.core import checks as _checks

# A module with `Params` is a calibrator, and public.
for _name, _module in [*globals().items()]:
    if hasattr(_module, "Params"):
        register(_name)(_module)

_checks.export(__name__, modules=catalogue())
