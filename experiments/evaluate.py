"""Evaluate a trained network: write its predictions, and a score report with calibration.

    python -m experiments.evaluate --workdir=/tmp/digits
    python -m experiments.evaluate --workdir=/tmp/digits --checkpoint=best_nll
    python -m experiments.evaluate --workdir=/tmp/digits --calibrate=vector --per_class
    python -m experiments.evaluate --workdir=/tmp/resnet20 --ood=svhn,gaussian_noise --training

--checkpoint is latest, best_NAME for a metric whose best checkpoint the run kept (error, nll, ece),
or the number of a step. The default is latest, or the best by patience_for if patience ended the
run. Choose by the NLL or by refinement_nll: a network at chance may have the best ECE, so the error
of a best_NAME is printed beside the best error of the run.

The command writes predictions_validation.npz and predictions_test.npz (logits, labels and, where
labels have weights, weights), which experiments.score reads, and the folder report: tables and
figures of the test set, before and after a calibrator fitted on the validation set.

If the folder holds several seeds, each is evaluated in its own folder, and the folder report
contains means over the seeds with intervals.

--ood=NAME,NAME separates other inputs from the test set by the entropy of the prediction, its
largest probability, and its energy, before and after the calibrator: AUROC, AUPR, FPR95 and ROC
curves in the folder report. A NAME is any data set (svhn, cifar10_c, ...), the import path of one
(my_package.sets:mine), or gaussian_noise: the test images with the noise of CIFAR-10-C at severity
5, or gaussian_noise:severity=3 for another.

To evaluate other weights, such as those of a released PyTorch network, give
--config=configs/cifar10_resnet50.py --init_from=FILE.npz and a new folder as --workdir.

--training adds the training set, without augmentation, in the folder report_training.
For long-tailed classes the report has the accuracy of many-, medium- and few-shot classes, and the
metrics by the frequency of the predicted class. For images whose pixels have classes,
--pictures=0,5,17 draws these test images with label, prediction, confidence and error to
report/pictures.
--criterion=nll,ece,adaptive_ece:0.01 shows several temperatures side by side.

--logits=none is for data sets whose logits do not fit into memory: it folds the test set into
streamed statistics, batch by batch, and writes report/values.json and values.txt, without intervals
and figures.
The calibrator, temperature or vector, is fitted from the validation set in several passes.
--logits=float16 also writes the logits of both sets in blocks, predictions_test/block_00000.npz
and so on, and reads the passes of the calibrator from them. experiments.compare shows such values,
without intervals and p-values, until an evaluation with --logits=keep replaces them.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import flags
from ml_collections import ConfigDict

from calib_jax import data, report, train
from calib_jax.core.examples import Examples
from calib_jax.report import calibrate
from calib_jax.train import checkpoint, log
from experiments.reports import (
    evaluation_record,
    excluded,
    long_tails,
    ood_sets,
    prediction_pictures,
    run_report,
    streamed_scores,
    summary,
    summary_text,
)
from experiments.reports.label_rows import label_rows
from experiments.running import building, cli, imports, provenance, seed_folders
from experiments.running.trained import Trained, predictions, restored

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_CONFIG = imports.define_config("Config of the network of --init_from.")
_ALLOW_IMPORTS = cli.define_allow_imports()
flags.adopt_module_key_flags(building)  # --data_dir, --init_from
_CHECKPOINT = cli.define_checkpoint()
_CALIBRATE = flags.DEFINE_string("calibrate", "temperature", "Calibrator; empty for none.")
_CRITERION = cli.define_criterion("; --ood uses the first")
_PER_CLASS = flags.DEFINE_bool("per_class", False, "Add a table per class.")
_RESAMPLES = cli.define_resamples(20)
_OOD = flags.DEFINE_list("ood", [], "Out-of-distribution sets: data sets, or gaussian_noise.")
_TRAINING = flags.DEFINE_bool("training", False, "Evaluate the training set, too.")
_PICTURES = flags.DEFINE_list(
    "pictures", [], "Numbers of test images whose pixels have classes, to draw, from 0 on."
)
_LOGITS = cli.define_logits(streamed_scores.KINDS)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 0, "Examples per step; 0 uses the batch size of training.", lower_bound=0
)


def begun(
    config: ConfigDict, source: str, *, data_dir: str | None = None
) -> tuple[building.Experiment, train.TrainState]:
    """Build an experiment, and a train state with given weights, without a run."""
    config.init_from = source
    experiment = building.build(config, data_dir=data_dir)
    return experiment, jax.device_get(experiment.state(anew=False))


def main() -> int:
    """Evaluate the network, and write its report."""
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER of the run.")
    cli.use_compilation_cache()
    folder = pathlib.Path(_WORKDIR.value)
    where = {"data_dir": building.DATA_DIR.value}
    source = building.INIT_FROM.value
    if bool(source) != bool(_CONFIG.value):
        raise cli.Refused(
            "--init_from=FILE and --config=FILE go together: give the config of the network."
        )
    several = seed_folders.there(folder)
    # Validate before predicting.
    cli.refusing(calibrate.chosen, _CALIBRATE.value, _CRITERION.value)
    if source:
        if flags.FLAGS["checkpoint"].present:
            raise cli.Refused("--checkpoint applies to --workdir: give --init_from=RUN:CHECKPOINT.")
        if (folder / "checkpoints").exists() or several:
            raise cli.Refused(f"{folder} holds a run with other weights: choose a new --workdir.")
        cli.refusing(seed_folders.named, _WORKDIR.value)
        experiment, state = cli.refusing(begun, _CONFIG.value, source, **where)
        cli.refusing(seed_folders.prepare, folder)
        trained = [Trained(folder, state, source=source)]
    else:
        folders = several.values() or [folder]
        experiment, trained = cli.refusing(
            restored, folders, _CHECKPOINT.value, allow_imports=_ALLOW_IMPORTS.value, **where
        )
    with contextlib.ExitStack() as locks:
        for place in dict.fromkeys([folder, *(network.folder for network in trained)]):
            lock_of_place = train.only_one(place, checkpoint.EVALUATION)
            cli.failing(cli.refusing, locks.enter_context, lock_of_place)
        return _evaluate(experiment, folder, several, trained)


def _evaluate(
    experiment: building.Experiment,
    folder: pathlib.Path,
    several: Mapping[int, pathlib.Path],
    trained: Sequence[Trained],
) -> int:
    """Write the predictions and the reports of networks whose folders are locked."""
    dataset = experiment.dataset
    chosen = cli.refusing(prediction_pictures.numbers, _PICTURES.value, dataset)
    for network in trained if len(chosen) else []:
        images = data.subset(dataset.test, chosen)
        predicted = cli.failing(predictions, experiment, [network.state], images, _BATCH_SIZE.value)
        place = network.folder / "report" / "pictures"
        for path in cli.refusing(prediction_pictures.write, dataset, chosen, predicted, place):
            cli.say(f"written: {path}")
    if _LOGITS.value != "keep":
        scored = [cli.refusing(_score_streamed, experiment, network) for network in trained]
        if several:
            values = [{"validation": (), "test": (), "streamed": scores} for scores in scored]
            _score_all(experiment, folder, several, trained, values)
        return 0
    others = cli.refusing(ood_sets.named, _OOD.value, dataset, building.DATA_DIR.value)
    sources = {"validation": dataset.validation, "test": dataset.test}
    if _TRAINING.value:
        sources["training"] = dataset.train
    all_answers: list[Answers] = [{} for _ in trained]
    for network in trained:
        cli.refusing(network.begin)
    states = [network.state for network in trained]
    for name, examples in {**sources, **others}.items():
        predicted = cli.failing(predictions, experiment, states, examples, _BATCH_SIZE.value)
        if name in sources:  # labels of other sets are not used
            cli.refusing(_check_labels, name, predicted, dataset.num_classes)
        for network, answers, logits in zip(trained, all_answers, predicted.logits, strict=True):
            answers[name] = predicted._replace(logits=logits)
            path = cli.refusing(
                evaluation_record.keep, network.folder, name, answers[name], network.weights
            )
            cli.say(f"written: {path} ({len(predicted.labels):,} examples)")
            answers[name] = predicted._replace(logits=excluded.without(logits, experiment.config))
    cli.say(dataset.description)
    for network, answers in zip(trained, all_answers, strict=True):
        cli.say(
            network.source
            or f"step {int(network.state.step)} of {network.folder} ({network.checkpoint})"
        )
        _score(experiment, network, answers, list(others))
        if not network.source:  # rewrite the page of the run, so that it links the new report
            shown = tuple(experiment.config.run.show_epochs)
            cli.refusing(run_report.write, network.folder, dataset.description, shown)
    if several:
        values = [
            {part: answers[part] for part in ("validation", "test")} for answers in all_answers
        ]
        _score_all(experiment, folder, several, trained, values)
    return 0


def _score_streamed(experiment: building.Experiment, network: Trained) -> streamed_scores.Scores:
    """Write the values of one network from streamed statistics."""
    unkept = {"--ood": _OOD.value, "--training": _TRAINING.value, "--per_class": _PER_CLASS.value}
    for name, value in unkept.items():
        if value:
            raise cli.Refused(f"{name} needs --logits=keep.")
    if _CRITERION.value != ["nll"]:
        raise cli.Refused("--criterion needs --logits=keep: over a stream it is the NLL.")
    if _LOGITS.value == "float16":
        cli.refusing(streamed_scores.check_places, network.folder)  # check before removing any file
    cli.refusing(network.begin)
    scored = streamed_scores.evaluate_network(
        experiment,
        network.state,
        network.folder,
        logits=_LOGITS.value,
        names=list(dict.fromkeys([*report.DEFAULT_METRICS, *summary.CELLS])),
        calibrate=_CALIBRATE.value,
        batch_size=_BATCH_SIZE.value or experiment.plan.batch_size,
    )
    cli.refusing(network.record)
    if _LOGITS.value == "float16":
        cli.say(f"written: {network.folder}/predictions_validation and predictions_test, in blocks")
    _show("test set", scored, network.folder / "report")
    return scored


Answers = dict[str, train.Predicted]


def _check_labels(name: str, predicted: train.Predicted, num_classes: int) -> None:
    """Raise an error for a label of positive weight that is out of range."""
    examples = Examples((), predicted.labels, predicted.weights)
    if label := train.label_out_of_range(name, examples, range(len(predicted.labels)), num_classes):
        raise ValueError(f"{label}: mend its label, or give it weight 0 in its Examples.")


def _score(
    experiment: building.Experiment, network: Trained, answers: Answers, others: Sequence[str]
) -> None:
    """Write the score report of one network."""
    folder, made = network.folder, cli.refusing(network.record, answers)
    calibrated: dict[str, Any] = {"num_resamples": _RESAMPLES.value}
    if _CALIBRATE.value:
        calibrated["calibrate"] = calibrate.registered(_CALIBRATE.value)
        calibrated["fit_on"] = label_rows(*answers["validation"])[:3]
        calibrated["criterion"] = _CRITERION.value
    of_bins = {"num_bins": experiment.config.num_bins, "per_class": _PER_CLASS.value}
    of_weights = [f"Weights: {made['checkpoint']}."] if "checkpoint" in made else []
    class_names = experiment.dataset.class_names
    for name, place in (("test", "report"), ("training", "report_training")):
        if name in answers:
            logits, labels, weights, examples = label_rows(*answers[name])
            counts = experiment.dataset.class_counts
            long_tailed = long_tails.score_options(counts, logits, of_bins["num_bins"])
            scored = cli.refusing(
                report.score,
                logits,
                labels,
                weights=weights,
                clusters=examples,
                class_names=class_names,
                **of_bins,
                **calibrated,
                **long_tailed,
            )
            first = [*of_weights]
            if note := excluded.sentence(experiment.config, class_names):
                first.append(note)
            scored = dataclasses.replace(
                scored, notes=[*first, *scored.notes], settings=scored.settings | made
            )
            _show(f"{name} set", scored, folder / place)
    if others:
        inner, *outer = (label_rows(*answers[name]) for name in ("test", *others))
        if all(rows.examples is not None for rows in (inner, *outer)):
            numbers = {name: rows.examples for name, rows in zip(others, outer, strict=True)}
            calibrated["clusters"] = inner.examples, numbers
        if _CALIBRATE.value:
            calibrated["criterion"] = _CRITERION.value[0]
        inside = inner.logits if inner.weights is None else inner.logits[inner.weights > 0]
        separated = cli.refusing(
            report.out_of_distribution,
            inside,
            {name: rows.logits for name, rows in zip(others, outer, strict=True)},
            **calibrated,
        )
        separated = dataclasses.replace(
            separated, notes=[*of_weights, *separated.notes], settings=separated.settings | made
        )
        _show("out of distribution", separated, folder / "report")


def _score_all(
    experiment: building.Experiment,
    folder: pathlib.Path,
    several: Mapping[int, pathlib.Path],
    trained: Sequence[Trained],
    values: Sequence[dict[str, Any]],
) -> None:
    """Write the report of all seeds together, before and after the temperatures.

    Args:
      experiment: the experiment of the seeds.
      folder: the folder of all seeds.
      several: the folder of each seed.
      trained: the networks.
      values: of each network, the predictions or the streamed values as fields of `summary.Run`.
    """
    loss = experiment.config.loss.name
    seeds = {path: seed for seed, path in several.items()}
    runs = [
        summary.Run(
            loss, seeds[network.folder], rows=log.read_rows(network.folder / log.ROWS), **parts
        )
        for parts, network in zip(values, trained, strict=True)
    ]
    dataset = experiment.dataset
    note = excluded.sentence(experiment.config, dataset.class_names)
    names = sorted({network.checkpoint for network in trained})
    about = {
        "title": f"{loss}, {len(runs)} seeds",
        "what": f"{dataset.description} {len(dataset.test):,} test examples."
        f" Checkpoints: {', '.join(names)}." + f" {note}" * bool(note),
        "examples": len(dataset.test),
        "num_bins": experiment.config.num_bins,
        "provenance": provenance.describe(),
    }
    criteria = _CRITERION.value
    if _CALIBRATE.value != "temperature":
        criteria = []
        fitted = f": {_CALIBRATE.value} is in the reports of the seeds" if _CALIBRATE.value else ""
        about["what"] += f" As trained{fitted}."
    options = {
        "num_bins": experiment.config.num_bins,
        "num_resamples": _RESAMPLES.value,
        "criteria": criteria,
    }
    all_seeds = summary.summarize(runs, baseline=loss, about=about, say=cli.say_step, **options)
    cli.say("\n" + summary_text.text(all_seeds))
    save = functools.partial(summary_text.save, all_seeds)
    names = cli.refusing(evaluation_record.save_report, folder / "report", save)
    cli.say(f"\nwritten to {folder / 'report'}: {', '.join(names)}")


def _show(title: str, scored: Any, folder: pathlib.Path) -> None:
    cli.say(f"\n{title}: {scored}")
    names = cli.refusing(evaluation_record.save_report, folder, scored.save)
    cli.say(f"\nwritten to {folder}: {', '.join(names)}")


if __name__ == "__main__":
    cli.run(main, select=imports.without_import_flags)
