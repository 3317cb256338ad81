r"""The law of temperatures on new data: train cross-entropy, freeze predictions, train the rest.

    python -m experiments.map.law --data=DIR --out=DIR --step=baseline
    python -m experiments.map.law --data=DIR --out=DIR --step=freeze
    python -m experiments.map.law --data=DIR --out=DIR --step=losses [--losses=focal_3,focal_1]
    python -m experiments.map.law --data=DIR --out=DIR --step=more
    python -m experiments.map.law --data=DIR --out=DIR --step=transfer

--data holds SET.npz for each set (`experiments.map.law_data`), with the vectors and labels of three
parts. The networks are heads on frozen features (`heads`): one hidden layer of 128 units, the first
2,500 training rows, SGD with learning rate .5, momentum .9 and a cosine over 30 epochs, batches of
128, six weight decays and three seeds. A record is a JSON file for each set and loss in --out, with
its logits beside it. A set and loss with a record is not trained again.

Rules, fixed with the predictions of `experiments/results/map/law-frozen.json` before any loss but
cross-entropy was trained on these sets (commit bb26e9d7, and 6bb9342e for Tiny-ImageNet):

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

The step "more" trains two more seeds of the losses of rules 3 and 5. Rule 3 was fixed for three
seeds and is judged by them; the comparisons of rule 5 have five.

The step "transfer" has no rule: it trains cross-entropy for 3 epochs, with 16 hidden units, and for
one epoch, predicts from them, and trains matched focal with the gammas of the first two.
"""

import json
import pathlib
import time
from typing import Any

import numpy as np
from absl import flags

from calib_jax import losses
from calib_jax.core import checks
from experiments.map import heads
from experiments.map.heads import LOSSES, PREDICTED, ROWS, SLOW
from experiments.map.settings import RESULTS, read, write
from experiments.running import cli

SETS = ("sst2", "sst5", "cifar10", "cifar5", "cifar2", "tiny200", "tiny100", "tiny20", "tiny5")
FEW = 500  # rows of a prediction of the step transfer
QUICK = ("sst2", "sst5", "cifar10")
STEPS = ("baseline", "freeze", "losses", "more", "transfer")
FROZEN = RESULTS / "law-frozen.json"
# Other trainings of the same heads; "by_..." are matched focal with the gammas of another training.
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "more": {"seeds": (3, 4)},
    "tenth": {"epochs": 3},
    "small": {"hidden": 16},
    "epoch": {"epochs": 1},
    "by_tenth": {},
    "by_small": {},
}
MORE = tuple(
    (loss, "more")
    for loss in ("cross_entropy", "focal_3", "matched", "adafocal", "bsce_gra", "focal_1", "flsd53")
)
TRANSFER = (
    *(("cross_entropy", variant) for variant in ("tenth", "small", "epoch")),
    *(("matched", "by_tenth"), ("matched", "by_small")),
    *(("focal_3", "epoch"), ("bsce_gra", "epoch")),
)


def matched(logits: np.ndarray, labels: np.ndarray) -> list[list[float]]:
    """Find gamma (negative for inverse focal loss) and predicted T for each weight decay."""
    found = []
    for of_decay in logits:
        try:
            of = losses.matched_focal(of_decay, np.stack([labels] * len(of_decay)))
            sign = 1 if of.loss == "focal" else -1
            found.append([round(sign * of.gamma, 3), round(of.temperature, 4)])
        except ValueError:
            found.append([0.0, float("nan")])
    return found


def freeze(out: pathlib.Path, sets: list[str], data: pathlib.Path) -> None:
    """Write the predictions of all sets with a record of cross-entropy, and their matched gamma."""
    frozen = read(FROZEN)
    for name in sets:
        stored = out / f"{name}-cross_entropy.npz"
        if name in frozen or not stored.exists():
            print(name, "is frozen already" if name in frozen else "has no --step=baseline yet")
            continue
        arrays, logits = np.load(data / f"{name}.npz"), np.load(stored)["validation"]
        labels = arrays["validation_labels"]
        frozen[name] = {
            "classes": logits.shape[-1],
            "rows": {
                part: min(len(arrays[f"{part}_labels"]), ROWS if part == "train" else 10**9)
                for part in ("train", "validation", "test")
            },
            "cross_entropy": json.loads((out / f"{name}-cross_entropy.json").read_text())["values"],
            "matched": matched(logits, labels),
            "predicted": {
                loss: heads.predicted(logits, labels, loss)
                for loss in PREDICTED
                if name in QUICK or loss not in SLOW
            },
        }
        print(name, "frozen:", frozen[name]["matched"], flush=True)
        write(FROZEN, frozen)


def path_of(out: pathlib.Path, name: str, loss: str, variant: str = "") -> pathlib.Path:
    """Return the record of a set, a loss and a variant."""
    return out / ("-".join(filter(None, (name, loss, variant))) + ".json")


def record(
    arrays: dict[str, np.ndarray], path: pathlib.Path, loss: str, variant: str, gammas: np.ndarray
) -> dict[str, Any]:
    """Train a loss on a set, and write its record and logits."""
    began = time.perf_counter()
    logits = heads.train(arrays, loss, gammas, **VARIANTS[variant])
    stored: dict[str, Any] = {**logits}
    np.savez(path.with_suffix(".npz"), **stored)
    found = {
        "set": path.stem.split("-")[0],
        "loss": loss,
        "values": heads.measured(logits, arrays),
        "seconds": round(time.perf_counter() - began, 1),
    }
    if variant:
        found["variant"] = variant
    if loss == "matched":
        found["gammas"] = gammas.tolist()
    if variant in ("tenth", "small", "epoch") and loss == "cross_entropy":
        labels = arrays["validation_labels"]
        some = slice(None, None, -(-len(labels) // FEW))
        if variant != "epoch":
            found["matched"] = matched(logits["validation"][:, :, some], labels[some])
        found["predicted"] = {
            other: heads.predicted(logits["validation"], labels, other, FEW)
            for other in ("focal_3", "bsce_gra")
        }
    path.write_text(json.dumps(found) + "\n")
    return found


def main() -> None:
    """Carry out one step for the sets whose data exist."""
    step = flags.FLAGS.step
    data, out = pathlib.Path(flags.FLAGS.data), pathlib.Path(flags.FLAGS.out)
    for loss in flags.FLAGS.losses:
        cli.refusing(checks.one_of, "loss", loss, list(LOSSES))
    if not flags.FLAGS.out:
        raise cli.Refused("give --out=FOLDER for the records and logits.")
    sets = [name for name in flags.FLAGS.sets if (data / f"{name}.npz").exists()]
    if not sets:
        raise cli.Refused(
            f"--data={data} has no {flags.FLAGS.sets[0]}.npz or another of --sets:"
            " experiments.map.law_data writes them."
        )
    out.mkdir(parents=True, exist_ok=True)
    if step == "freeze":
        freeze(out, sets, data)
        return
    frozen = {} if step == "baseline" else read(FROZEN)
    if step != "baseline" and not frozen.keys() & set(sets):
        raise cli.Refused(
            f"{', '.join(sets)}: no predictions are frozen; --step=freeze comes first."
        )
    wanted = {
        "baseline": [("cross_entropy", "")],
        "losses": [(loss, "") for loss in flags.FLAGS.losses],
        "more": list(MORE),
        "transfer": list(TRANSFER),
    }[step]
    for loss, variant in wanted:
        for name in sets:
            path = path_of(out, name, loss, variant)
            if path.exists() or (step != "baseline" and name not in frozen):
                continue
            gammas = np.zeros(len(heads.WEIGHT_DECAYS))
            if loss == "matched":
                source = frozen[name]
                if variant.startswith("by_"):
                    other = path_of(out, name, "cross_entropy", variant.removeprefix("by_"))
                    source = json.loads(other.read_text())
                gammas = np.array([gamma for gamma, _ in source["matched"]])
            found = record(dict(np.load(data / f"{name}.npz")), path, loss, variant, gammas)
            mean = np.exp(np.nanmean(np.log(found["values"]["temperature"]), axis=1)).round(2)
            print(f"{path.stem}: T {mean.tolist()}, {found['seconds']} s", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("data", "", "Folder of experiments.map.law_data.")
    flags.DEFINE_string("out", "", "Folder of the records and logits.")
    flags.DEFINE_enum("step", "losses", STEPS, "Step.")
    flags.DEFINE_list("sets", list(SETS), "Sets.")
    flags.DEFINE_list("losses", list(LOSSES)[1:], "Losses of the step losses.")
    cli.run(main)
