"""Records that hold arrays print as a few lines."""

import jax.numpy as jnp
import numpy as np

from calib_jax import metrics, train
from calib_jax.report import Report


def test_arrays_are_summarized_and_never_read():
    state = train.TrainState(
        step=jnp.asarray(3),
        params={f"layer {number}": jnp.zeros((100, 10)) for number in range(50)},
        model_state={},
        opt_state=(),
        loss_state=(),
        rng=np.zeros(2, np.uint32),
    )
    state.step.delete()  # as donated
    outcome = train.Outcome(state, 3, True, None, False, {"nll": {"step": 3, "value": 0.5}})
    assert repr(outcome) == (
        "Outcome(state=TrainState(step=int32[], params=<dict of 50>, model_state={}, opt_state=(),"
        " loss_state=(), rng=uint32[2], average=()), step=3, finished=True, stopped_by=None,"
        " already=False, best={'nll': {'step': 3, 'value': 0.5}}, failed='')"
    )
    stated = metrics.Stated(np.full(900, 0.5), [True] * 900)
    assert repr(stated) == "Stated(confidence=float64[900], correct=<list of 900>)"
    notes = ["A note."] * 900
    scored = Report({"level": 0.9}, [], [], [], [], {"as given": np.zeros(9)}, {}, notes)
    assert repr(scored) == (
        "Report(settings={'level': 0.9}, rows=[], changes=[], classes=[], groups=[],"
        " reliability=<dict of 1>, calibrators={}, notes=<list of 900>, pairs=[],"
        " event=None, headlines=[])"
    )
