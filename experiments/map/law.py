r"""The law of temperatures on new data: train cross-entropy, freeze predictions, train the rest.

    python -m experiments.map.law --data=DIR --out=DIR --step=baseline
    python -m experiments.map.law --data=DIR --out=DIR --step=freeze
    python -m experiments.map.law --data=DIR --out=DIR --step=losses [--losses=focal_3,focal_1]

--data holds SET.npz for each set, with the vectors and labels of three parts. The networks are
heads on frozen features: one hidden layer of 128 units, the first 2,500 training rows, SGD with
learning rate .5, momentum .9 and a cosine over 30 epochs, batches of 128, six weight decays and
three seeds, trained together in one program. A record is a JSON file for each set and loss, with
its logits beside it in --out. A set and loss with a record is not trained again.

Rules, fixed with the predictions of `experiments/results/map/law-frozen.json` before any loss but
cross-entropy was trained on these sets:

1. A place is a set with a weight decay. T of a place is the geometric mean over three seeds of
   the temperature that minimises the validation NLL. The prediction of a loss is the geometric
   mean over the seeds of the temperature predicted from cross-entropy's validation logits.
2. For each loss: the mean of log(measured / predicted) over the places (bias), its standard
   deviation (scatter), and the slope of log measured on log predicted. The interval of the bias is
   a t-interval of 90 % over the means of the sets. Sets of the same images with other classes are
   no independent sets, which makes the interval too short.
3. The law holds for a loss if this interval lies within -.2 and .2, and if the root mean square of
   log(measured / predicted) is lower than with the constant factors of the three text sets of the
   map: FL-1 .76, FL-3 .58, BSCE-GRA .58.
4. Places whose cross-entropy has an error above 90 % of chance are dead and counted apart.
5. Matched focal: the gamma of `losses.matched_focal` on the validation logits of the three seeds of
   cross-entropy. Root-CE2 of a place is the root of the mean CE2 of test rows over the seeds (0 if
   negative), in points, before any temperature. Primary comparisons, as mean over the places with a
   90 % t-interval over the sets: lower than FL-3 (holds if the interval lies below 0); against
   AdaFocal (holds if its upper end is below .5 points); against cross-entropy with a temperature
   (the difference with its interval, no rule). All results are printed, whatever they are.
"""

import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from calib_jax import inference, losses
from calib_jax.core import population

SETS = ("sst2", "sst5", "cifar10", "cifar5", "cifar2", "tiny200", "tiny100", "tiny20", "tiny5")
WEIGHT_DECAYS = (0.0, 5e-5, 2e-4, 5e-4, 2e-3, 5e-3)
SEEDS = 3
ROWS, HIDDEN, EPOCHS, BATCH, RATE, MOMENTUM = 2500, 128, 30, 128, 0.5, 0.9
# The objective of each loss with its options, in the order of training.
LOSSES: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("cross_entropy", {}),
    "focal_3": ("focal", {"gamma": 3.0}),
    "matched": ("matched", {}),
    "adafocal": ("adafocal", {}),
    "bsce_gra": ("bsce_gra", {}),
    "focal_1": ("focal", {"gamma": 1.0}),
    "flsd53": ("flsd53", {}),
    "fl_gra": ("fl_gra", {"gamma": 3.0}),
    "label_smoothing": ("label_smoothing", {"alpha": 0.05}),
    "brier": ("brier", {}),
    "dual_focal": ("dual_focal", {}),
}
RESULTS = pathlib.Path(__file__).parents[1] / "results" / "map"
FROZEN = RESULTS / "law-frozen.json"

_DATA = flags.DEFINE_string("data", "", "Folder of experiments.map.law_data.")
_OUT = flags.DEFINE_string("out", "", "Folder of the records and logits.")
_STEP = flags.DEFINE_enum("step", "losses", ("baseline", "freeze", "losses"), "Step.")
_SETS = flags.DEFINE_list("sets", list(SETS), "Sets.")
_LOSSES = flags.DEFINE_list("losses", list(LOSSES)[1:], "Losses of the step losses.")


def train(arrays: dict[str, np.ndarray], loss: str, gammas: np.ndarray) -> dict[str, np.ndarray]:
    """Train all weight decays and seeds of a loss; return logits `[decays, seeds, rows, classes]`.

    Args:
      arrays: vectors and labels of the three parts.
      loss: one of `LOSSES`.
      gammas: the gamma of each weight decay, negative for inverse focal loss; used by "matched".
    """
    name, options = LOSSES[loss]
    objective: Any = None if name == "matched" else losses.objective(name, **options)
    x, y = (jnp.asarray(arrays[name][:ROWS]) for name in ("train", "train_labels"))
    held_out, of_held_out = jnp.asarray(arrays["validation"]), arrays["validation_labels"]
    num_classes, steps = int(arrays["train_labels"].max()) + 1, len(x) // BATCH

    def initial(seed: int) -> dict[str, jax.Array]:
        keys = jax.random.split(jax.random.key(seed), 2)
        shapes = (x.shape[1], HIDDEN), (HIDDEN, num_classes)
        a, b = (
            jax.random.uniform(key, shape, minval=-1, maxval=1) / np.sqrt(shape[0])
            for key, shape in zip(keys, shapes, strict=True)
        )
        return {"a": a, "a0": jnp.zeros(HIDDEN), "b": b, "b0": jnp.zeros(num_classes)}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["a"] + params["a0"]) @ params["b"] + params["b0"]

    def mean_loss(params: Any, state: Any, gamma: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        logits = apply(params, x)
        if objective is not None:
            return objective.value(state, logits, y).mean()
        focal = losses.focal(logits, y, gamma=jnp.maximum(gamma, 0))
        inverse = losses.inverse_focal(logits, y, gamma=jnp.maximum(-gamma, 0))
        return jnp.where(gamma >= 0, focal, inverse).mean()

    def epoch_of_one(
        params: Any, momentum: Any, state: Any, decay: Any, gamma: Any, order: Any, first: Any
    ) -> tuple[Any, Any]:
        def step(carry: Any, rows_and_number: Any) -> tuple[Any, None]:
            params, momentum = carry
            rows, number = rows_and_number
            rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * number / (EPOCHS * steps)))
            slopes = jax.grad(mean_loss)(params, state, gamma, x[rows], y[rows])
            momentum = jax.tree.map(
                lambda m, g, p: MOMENTUM * m + g + decay * p, momentum, slopes, params
            )
            return (jax.tree.map(lambda p, m: p - rate * m, params, momentum), momentum), None

        rows = order[: steps * BATCH].reshape(steps, BATCH)
        carry, _ = jax.lax.scan(step, (params, momentum), (rows, first + jnp.arange(steps)))
        return carry

    epoch = jax.jit(jax.vmap(epoch_of_one, in_axes=(0, 0, 0, 0, 0, 0, None)))
    logits_of = jax.jit(jax.vmap(apply, in_axes=(0, None)))
    networks = [(decay, seed) for decay in range(len(WEIGHT_DECAYS)) for seed in range(SEEDS)]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(initial(s) for _, s in networks))
    momentum = jax.tree.map(jnp.zeros_like, params)
    decays = jnp.array([WEIGHT_DECAYS[decay] for decay, _ in networks])
    gamma = jnp.array([gammas[decay] for decay, _ in networks])
    start = () if objective is None else objective.init(num_classes)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(networks)), start)

    @jax.jit
    @jax.vmap
    def updated(params: Any, state: Any, epochs: jax.Array) -> Any:
        evidence = objective.evidence(state, apply(params, held_out), of_held_out)
        progress = losses.Progress(epochs * steps, epochs, EPOCHS)
        return objective.update(state, evidence, progress)

    for number in range(EPOCHS):
        orders = np.stack(
            [np.random.default_rng([s, number]).permutation(len(x)) for _, s in networks]
        )
        params, momentum = epoch(params, momentum, state, decays, gamma, orders, number * steps)
        if objective is not None and objective.clock == "validation":
            state = updated(params, state, jnp.full(len(networks), number + 1))
    shape = (len(WEIGHT_DECAYS), SEEDS)
    return {
        part: np.asarray(logits_of(params, jnp.asarray(arrays[part]))).reshape(
            *shape, -1, num_classes
        )
        for part in ("validation", "test")
    }


def measured(logits: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Measure each network on the test rows, before and after its validation temperature."""
    names = ("temperature", "error", "gap", "nll", "nll_after", "ce2", "ce2_after", "auroc")
    found: dict[str, Any] = {name: np.zeros(logits["test"].shape[:2]) for name in names}
    y, y_held = arrays["test_labels"], arrays["validation_labels"]
    for at in np.ndindex(*logits["test"].shape[:2]):
        z = logits["test"][at].astype(np.float64)
        try:
            t = population.temperature(logits["validation"][at].astype(np.float64), y_held)
        except ValueError:
            t = np.nan
        p, q = population.softmax(z), population.softmax(z / (t if t == t else 1.0))
        right, confidence = z.argmax(-1) == y, p.max(-1)
        order = np.argsort(np.argsort(confidence))
        wrong = int((~right).sum())
        ranks = order[right].sum() - right.sum() * (right.sum() - 1) / 2
        of_rows = (p[np.arange(len(y)), y], q[np.arange(len(y)), y])
        values = (
            *(t, 1 - right.mean(), confidence.mean() - right.mean()),
            *(-np.log(np.maximum(part, 1e-30)).mean() for part in of_rows),
            *(inference.ce2(part.max(-1), right).value for part in (p, q)),
            ranks / max(wrong * int(right.sum()), 1),
        )
        for name, value in zip(names, values, strict=True):
            found[name][at] = value
    return {name: np.round(value, 6).tolist() for name, value in found.items()}


def predicted(logits: np.ndarray, labels: np.ndarray, loss: str) -> dict[str, Any]:
    """Predict T and the signed gap of a loss from each network of cross-entropy."""
    name, options = LOSSES[loss]
    found: dict[str, Any] = {"temperature": [], "gap": []}
    for of_decay in logits.astype(np.float64):
        pairs = []
        for z in of_decay:
            try:
                fitted = population.temperature(z, labels)
                other = population.predicted_logits(z, fitted, name, **options)
                gap = population.softmax(other).max(-1).mean() - (other.argmax(-1) == labels).mean()
                pairs.append((population.temperature(other, labels), gap))
            except ValueError:
                pairs.append((np.nan, np.nan))
        for column, values in zip(found.values(), zip(*pairs, strict=True), strict=True):
            column.append(np.round(values, 5).tolist())
    return found


def freeze(out: pathlib.Path, sets: list[str], data: pathlib.Path) -> None:
    """Write the predictions of all sets with a record of cross-entropy, and their matched gamma."""
    frozen = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    for name in sets:
        stored = out / f"{name}-cross_entropy.npz"
        if name in frozen or not stored.exists():
            continue
        arrays, logits = np.load(data / f"{name}.npz"), np.load(stored)["validation"]
        labels = arrays["validation_labels"]
        matched = []
        for of_decay in logits:
            try:
                found = losses.matched_focal(of_decay, np.stack([labels] * len(of_decay)))
                sign = 1 if found.loss == "focal" else -1
                matched.append([round(sign * found.gamma, 3), round(found.temperature, 4)])
            except ValueError:
                matched.append([0.0, float("nan")])
        slow = () if name in ("sst2", "sst5", "cifar10") else ("dual_focal",)
        skipped = ("matched", "adafocal", *slow)
        frozen[name] = {
            "classes": logits.shape[-1],
            "rows": {
                part: min(len(arrays[f"{part}_labels"]), ROWS if part == "train" else 10**9)
                for part in ("train", "validation", "test")
            },
            "cross_entropy": json.loads((out / f"{name}-cross_entropy.json").read_text())["values"],
            "matched": matched,
            "predicted": {
                loss: predicted(logits, labels, loss) for loss in LOSSES if loss not in skipped
            },
        }
        print(name, "frozen:", matched, flush=True)
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in frozen.items()]
        FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(_: Any) -> None:
    """Carry out one step for the sets whose data exist."""
    data, out = pathlib.Path(_DATA.value), pathlib.Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    sets = [name for name in _SETS.value if (data / f"{name}.npz").exists()]
    if _STEP.value == "freeze":
        freeze(out, sets, data)
        return
    frozen = {} if _STEP.value == "baseline" else json.loads(FROZEN.read_text())
    wanted = ["cross_entropy"] if _STEP.value == "baseline" else _LOSSES.value
    for loss in wanted:
        for name in sets:
            record = out / f"{name}-{loss}.json"
            if record.exists() or (loss != "cross_entropy" and name not in frozen):
                continue
            began = time.perf_counter()
            arrays = dict(np.load(data / f"{name}.npz"))
            gammas = np.zeros(len(WEIGHT_DECAYS))
            if loss == "matched":
                gammas = np.array([gamma for gamma, _ in frozen[name]["matched"]])
            logits = train(arrays, loss, gammas)
            stored: dict[str, Any] = {**logits}
            np.savez(record.with_suffix(".npz"), **stored)
            values = measured(logits, arrays)
            seconds = round(time.perf_counter() - began, 1)
            text = {"set": name, "loss": loss, "values": values, "seconds": seconds}
            record.write_text(json.dumps(text) + "\n")
            mean = np.exp(np.nanmean(np.log(values["temperature"]), axis=1)).round(2)
            print(f"{name} {loss}: T {mean.tolist()}, {seconds} s", flush=True)


if __name__ == "__main__":
    app.run(main)
