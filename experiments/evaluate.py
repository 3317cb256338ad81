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
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import flags

from calib_jax import report, train
from calib_jax.report import calibrate
from calib_jax.train import checkpoint, log
from experiments.datasets import ood_sets
from experiments.evaluation import evaluation_record, prediction_pictures, scoring, streamed_scores
from experiments.evaluation.scoring import on_excluded, without_excluded
from experiments.evaluation.trained import Trained, restored, write_predictions
from experiments.reports import pages, run_report, summary, summary_text
from experiments.running import building, cli, environment, imports, training

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


def main() -> int:
    """Evaluate the networks of a run, or given weights, and write their reports."""
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER of the run.")
    cli.use_compilation_cache()
    folder, source = pathlib.Path(_WORKDIR.value), building.INIT_FROM.value
    several = training.there(folder)
    # Validate before predicting.
    cli.refusing(calibrate.requested, _CALIBRATE.value, _CRITERION.value)
    if bool(source) != bool(_CONFIG.value):
        raise cli.Refused(
            "--init_from=FILE and --config=FILE go together: give the config of the network."
        )
    if source:
        if flags.FLAGS["checkpoint"].present:
            raise cli.Refused("--checkpoint applies to --workdir: give --init_from=RUN:CHECKPOINT.")
        if (folder / "checkpoints").exists() or several:
            raise cli.Refused(f"{folder} holds a run with other weights: choose a new --workdir.")
        cli.refusing(training.named, _WORKDIR.value)
        _CONFIG.value.init_from = source
        data_dir = building.DATA_DIR.value
        experiment = cli.refusing(building.build, _CONFIG.value, data_dir=data_dir)
        state = jax.device_get(cli.refusing(experiment.state, anew=False))
        cli.refusing(training.prepare, folder)
        trained = [Trained(folder, state, source=source)]
    else:
        experiment, trained = cli.refusing(
            restored,
            several.values() or [folder],
            _CHECKPOINT.value,
            allow_imports=_ALLOW_IMPORTS.value,
            data_dir=building.DATA_DIR.value,
        )
    with contextlib.ExitStack() as locks:
        for place in dict.fromkeys([folder, *(network.folder for network in trained)]):
            lock_of_place = train.only_one(place, checkpoint.EVALUATION)
            cli.failing(cli.refusing, locks.enter_context, lock_of_place)
        for network in trained:
            options = (experiment, network, _PICTURES.value, _BATCH_SIZE.value)
            for path in cli.refusing(prediction_pictures.draw, *options):
                cli.say(f"written: {path}")
        if _LOGITS.value == "keep":
            values = predict_and_score(experiment, trained)
        else:
            scored = [cli.refusing(score_streamed, experiment, network) for network in trained]
            values = [{"validation": (), "test": (), "streamed": scores} for scores in scored]
        if several:
            score_all(experiment, folder, several, trained, values)
    return 0


def predict_and_score(
    experiment: building.Experiment, trained: Sequence[Trained]
) -> list[dict[str, Any]]:
    """Write the predictions and the report of every network; return those of both sets."""
    dataset = experiment.dataset
    others = cli.refusing(ood_sets.named, _OOD.value, dataset, building.DATA_DIR.value)
    sources = {"validation": dataset.validation, "test": dataset.test}
    if _TRAINING.value:
        sources["training"] = dataset.train
    all_answers = write_predictions(
        experiment, trained, {**sources, **others}, _BATCH_SIZE.value, unlabelled=others
    )
    cli.say(dataset.description)
    for network, answers in zip(trained, all_answers, strict=True):
        files = ", ".join(f"predictions_{name}.npz" for name in answers)
        step = f"step {int(network.state.step)} of {network.folder} ({network.checkpoint})"
        cli.say(f"{network.source or step}\nwritten to {network.folder}: {files}")
        for name, predicted in answers.items():
            logits = without_excluded(predicted.logits, experiment.config)
            answers[name] = predicted._replace(logits=logits)
        made = cli.refusing(network.record, answers)
        reports = scoring.reports(
            experiment,
            answers,
            list(others),
            made,
            calibrate=_CALIBRATE.value,
            criteria=_CRITERION.value,
            num_resamples=_RESAMPLES.value,
            per_class=_PER_CLASS.value,
        )
        while made_report := cli.refusing(next, reports, None):
            title, scored, place = made_report
            _show(title, scored, network.folder / place)
        if not network.source:  # rewrite the page of the run, so that it links the new report
            shown = tuple(experiment.config.run.show_epochs)
            cli.refusing(run_report.write, network.folder, dataset.description, shown)
    return [{part: answers[part] for part in ("validation", "test")} for answers in all_answers]


def score_streamed(experiment: building.Experiment, network: Trained) -> streamed_scores.Scores:
    """Write the values of one network from streamed statistics."""
    unkept = {"--ood": _OOD.value, "--training": _TRAINING.value, "--per_class": _PER_CLASS.value}
    unkept["--criterion"] = _CRITERION.value != ["nll"]
    for name, value in unkept.items():
        if value:
            raise cli.Refused(f"{name} needs --logits=keep.")
    if _LOGITS.value == "float16":
        cli.refusing(streamed_scores.check_places, network.folder)  # check before removing any file
    cli.refusing(evaluation_record.begin, network.folder, network.weights)
    scored = streamed_scores.evaluate_network(
        experiment,
        network.state,
        network.folder,
        logits=_LOGITS.value,
        names=list(dict.fromkeys([*report.DEFAULT_METRICS, *summary.CELLS])),
        calibrate=_CALIBRATE.value,
        batch_size=_BATCH_SIZE.value,
    )
    cli.refusing(network.record)
    if _LOGITS.value == "float16":
        cli.say(f"written: {network.folder}/predictions_validation and predictions_test, in blocks")
    _show("test set", scored, network.folder / "report")
    return scored


def score_all(
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
    config, dataset = experiment.config, experiment.dataset
    loss, seeds = config.loss.name, {path: seed for seed, path in several.items()}
    runs = [
        summary.Run(loss, seeds[place], rows=log.read_rows(place / log.ROWS), **parts)
        for parts, place in zip(values, (network.folder for network in trained), strict=True)
    ]
    by_temperature = _CALIBRATE.value == "temperature"
    fitted = f": {_CALIBRATE.value} is in the reports of the seeds" if _CALIBRATE.value else ""
    what = [
        f"{dataset.description} {len(dataset.test):,} test examples.",
        f"Checkpoints: {', '.join(sorted({network.checkpoint for network in trained}))}.",
        *on_excluded(config, dataset.class_names),
        *[f"As trained{fitted}."] * (not by_temperature),
    ]
    about = {
        "title": f"{loss}, {len(runs)} seeds",
        "what": " ".join(what),
        "examples": len(dataset.test),
        "num_bins": config.num_bins,
        "provenance": environment.describe(),
    }
    criteria, num_resamples = _CRITERION.value if by_temperature else [], _RESAMPLES.value
    options = {"criteria": criteria, "num_resamples": num_resamples}
    summary_text.tabulate(runs, folder / "report", baseline=loss, about=about, **options)


def _show(title: str, scored: Any, folder: pathlib.Path) -> None:
    cli.say(f"\n{title}: {scored}")
    names = cli.refusing(pages.replace, folder, scored.save)
    cli.say(f"\nwritten to {folder}: {', '.join(names)}")


if __name__ == "__main__":
    cli.run(main, select=imports.without_import_flags)
