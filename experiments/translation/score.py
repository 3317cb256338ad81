r"""Score trained networks of translation: BLEU and chrF, and the calibration of their tokens.

    python -m experiments.translation.score --data_dir=DIR /tmp/cross_entropy
    python -m experiments.translation.score --data_dir=DIR /tmp/cross_entropy /tmp/focal \
        --temperatures=0.6,0.8,1,1.2,1.5 --out=/tmp/translation

The arguments are folders of runs on the same data set, the baseline first. Each network translates
the test part by beam search at every temperature. BLEU and chrF are those of sacrebleu (pip install
sacrebleu) at temperature 1 and at the best one of the validation NLL, with 95 % bootstrap intervals
and a paired bootstrap against the baseline over whole sentences.

The tokens of the test part, each given the true tokens before it, are scored before and after the
temperature, with intervals that resample whole sentences (folder tokens_NAME of --out), and their
NLL is compared with the baseline's by a paired test over sentences. The figure shows BLEU on the
test part and the token ECE on the validation part against the temperature.

--out gets translation.json, translation.md, figures and the translations; by default it is the
folder translation in the first run.
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from calib_jax import data, inference, losses, metrics, plots, report
from calib_jax.calibrators import temperature
from calib_jax.core.files import writing
from calib_jax.core.files.escaping import without_nan
from calib_jax.report import caveats, tables
from experiments.reports.short_names import short_names
from experiments.running import building, cli, provenance, subword_files
from experiments.translation import bleu, networks

flags.declare_key_flag("data_dir")  # defined by `building`, whose other flag is for weights
_OUT = flags.DEFINE_string("out", None, "Folder of the results.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "latest, best_NAME, or a step, as for experiments.evaluate."
)
_TEMPERATURES = flags.DEFINE_list(
    "temperatures", ["0.6", "0.8", "1", "1.2", "1.5"], "Temperatures of the figure."
)
_BEAM = flags.DEFINE_integer("beam", 4, "Candidates of a sentence; 1 is greedy.", lower_bound=1)
_LENGTH_PENALTY = flags.DEFINE_float(
    "length_penalty", 0.6, "Exponent of the length; 0 favors short translations.", lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Sentences at a time.", lower_bound=1)
_SENTENCES = flags.DEFINE_integer(
    "sentences", 0, "Translate only the first sentences of the test part; 0 translates all."
)
_RESAMPLES = cli.define_resamples()
_ALLOW_IMPORTS = cli.define_allow_imports()

TOKEN_METRICS = ("accuracy", "nll", "ece", "adaptive_ece")
SHOWN = 10  # translations on the page
LEVEL = 0.95  # the level of the intervals


class Scored(NamedTuple):
    """The results of one network.

    Attributes:
      fitted: the temperature with the lowest validation NLL.
      translations: the translations of the test sentences, by temperature.
      validation_ece: the token ECE on the validation part, by temperature.
      tokens: the scores of the test tokens before and after the fitted temperature.
      nll: the NLL of every test token, before and after the temperature.
      sentences: the number of the sentence of each test token.
    """

    fitted: float
    translations: dict[float, list[str]]
    validation_ece: dict[float, float]
    tokens: report.Report
    nll: tuple[np.ndarray, np.ndarray]
    sentences: np.ndarray

    @property
    def unsettled(self) -> str:
        """How the fit of the temperature ended, if it did not converge."""
        return ", ".join(self.tokens.unsettled.values())


def scored(
    translator: networks.Translator,
    dataset: data.Dataset,
    sentences: Sequence[str],
    temperatures: Sequence[float],
) -> Scored:
    """Score one network."""
    cli.say_step("logits of the tokens")
    logits, labels, _ = translator.token_logits(dataset.validation)
    fitted = float(temperature.fit(logits, labels).temperature)
    used = dict.fromkeys((1.0, fitted, *temperatures))
    validation_ece = {t: float(metrics.ece(logits / np.float32(t), labels)) for t in used}
    test_logits, test_labels, clusters = translator.token_logits(dataset.test)
    tokens = report.score(
        test_logits,
        test_labels,
        clusters=clusters,
        calibrate="temperature",
        fit_on=(logits, labels),
        metrics=TOKEN_METRICS,
        num_resamples=_RESAMPLES.value,
        level=LEVEL,
    )
    losses_before, losses_after = (
        np.asarray(losses.cross_entropy(test_logits / np.float32(t), test_labels), np.float64)
        for t in (1.0, fitted)
    )
    translations = {}
    for t in used:
        cli.say_step(f"translations at temperature {t:.3g}")
        translations[t] = translator.translate(
            sentences,
            beam=_BEAM.value,
            length_penalty=_LENGTH_PENALTY.value,
            temperature=t,
            batch_size=_BATCH_SIZE.value,
        )
    nll = losses_before, losses_after
    return Scored(fitted, translations, validation_ece, tokens, nll, clusters)


def compared_nll(first: Scored, other: Scored) -> list[inference.NormalTest]:
    """Test the differences of the token NLLs from `first`, before and after the temperature.

    Whole sentences are the units, because the tokens of a sentence depend on each other. There is
    no p-value after a fit that did not converge.
    """
    before, after = (
        inference.paired_test(b - a, first.sentences, LEVEL)
        for a, b in zip(first.nll, other.nll, strict=True)
    )
    unsettled = first.unsettled or other.unsettled
    return [before, after._replace(p_value=math.nan) if unsettled else after]


class Page(NamedTuple):
    """The results of all networks, as numbers and as text.

    Attributes:
      values: the content of translation.json.
      text: the content of translation.md.
    """

    values: dict[str, Any]
    text: str


def page(
    results: Mapping[str, Scored], sources: Sequence[str], references: Sequence[str], about: str
) -> Page:
    """Compute BLEU and chrF of all networks, and write the page."""
    columns = {
        "1": dict.fromkeys(results, 1.0),
        "fitted": {k: r.fitted for k, r in results.items()},
    }
    quality: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for column, chosen in columns.items():
        systems = {name: result.translations[chosen[name]] for name, result in results.items()}
        quality[column], signatures = bleu.qualities(systems, references, _RESAMPLES.value)
    unsettled = {name: result.unsettled for name, result in results.items() if result.unsettled}
    for of_metric in quality["fitted"].values():
        untested = of_metric if next(iter(results)) in unsettled else unsettled
        of_metric |= {name: of_metric[name]._replace(p_value=None) for name in untested}
    curves = {
        name: {
            f"{t:.4g}": {
                "bleu": bleu.bleu(result.translations[t], references),
                "validation_ece": result.validation_ece[t],
            }
            for t in sorted(result.translations)
        }
        for name, result in results.items()
    }
    tokens = {
        name: [
            {key: getattr(row, key) for key in ("metric", "predictions", "value", "low", "high")}
            for row in result.tokens.rows
        ]
        for name, result in results.items()
    }
    baseline, *others = results
    changes = {name: compared_nll(results[baseline], results[name]) for name in others}
    values = {
        "about": about,
        "sentences": len(references),
        "temperatures": {name: result.fitted for name, result in results.items()},
        "quality": {
            column: {
                metric: {name: of_name._asdict() for name, of_name in of_metric.items()}
                for metric, of_metric in by_metric.items()
            }
            for column, by_metric in quality.items()
        },
        "signatures": signatures,
        "curves": curves,
        "tokens": tokens,
        "nll_changes": {
            name: [without_nan(test._asdict()) for test in tests] for name, tests in changes.items()
        },
        "provenance": provenance.describe(),
    }
    scores = [["network", "T", "BLEU", "p", "chrF", "p"]]
    for column, by_metric in quality.items():
        for name in results:
            cells = [_cells(by_metric[metric][name]) for metric in ("BLEU", "chrF")]
            at = f"{columns[column][name]:.3g}"
            at += f" ({unsettled[name]})" if column == "fitted" and name in unsettled else ""
            scores.append([name, at, *cells[0], *cells[1]])
    of_tokens = [["network", "predictions", *TOKEN_METRICS]]
    for name, result in results.items():
        for predictions in dict.fromkeys(row.predictions for row in result.tokens.rows):
            rows = {r.metric: r for r in result.tokens.rows if r.predictions == predictions}
            of_tokens.append(
                [name, predictions, *(tables.with_interval(rows[m]) for m in TOKEN_METRICS)]
            )
    parts = [
        "# Translation",
        about,
        f"BLEU and chrF of {len(references):,} test sentences, with 95 % bootstrap intervals, and p"
        " of a paired bootstrap against the first network; both resample sentences.",
        tables.in_markdown(scores),
        *caveats.unsettled(unsettled),
        "\n".join(f"{metric}: `{signature}`" for metric, signature in signatures.items()),
        "Tokens of the test part, with intervals that resample sentences:",
        tables.in_markdown(of_tokens),
    ]
    if changes:
        parts += [
            f"Token NLL minus that of {baseline}, before and after the temperature, with 95 %"
            " intervals and paired tests over sentences:",
            "\n".join(
                f"- {name}: {' and '.join(map(_change, of))}" for name, of in changes.items()
            ),
        ]
    translations = results[baseline].translations[1.0]
    shown = zip(sources[:SHOWN], translations, references, strict=False)
    parts += [
        "![BLEU and ECE against the temperature](temperature.png)",
        "\n".join(f"- {source}\n  - {ours}\n  - true: {true}" for source, ours, true in shown),
    ]
    return Page(values, "\n\n".join(parts) + "\n")


def _change(test: inference.NormalTest) -> str:
    p_value = "" if np.isnan(test.p_value) else f", p {test.p_value:.2g}"
    return f"{test.value:+.4f} [{test.low:+.4f}, {test.high:+.4f}]{p_value}"


def _cells(quality: bleu.Quality) -> list[str]:
    p_value = "" if quality.p_value is None else f"{quality.p_value:.3f}"
    return [f"{quality.score:.2f} [{quality.low:.2f}, {quality.high:.2f}]", p_value]


def drawn(values: Mapping[str, Any], temperatures: Sequence[float]) -> Any:
    """Draw BLEU and the validation ECE against the temperature."""
    by_name = values["curves"]
    panels = {
        title: {
            name: [curve[f"{t:.4g}"][key] for t in temperatures] for name, curve in by_name.items()
        }
        for title, key in (("test BLEU", "bleu"), ("validation ECE of tokens", "validation_ece"))
    }
    return plots.training_curves(panels, temperatures, columns=2, axis="temperature", width=7.0)


def _temperatures() -> list[float]:
    values = sorted({float(text) for text in _TEMPERATURES.value})
    if not values or values[0] <= 0:
        raise ValueError(f"--temperatures must be positive, got {','.join(_TEMPERATURES.value)}.")
    return values


def main(given: list[str]) -> int:
    """Score the networks, print the page, write the files."""
    if not given:
        raise cli.Refused("give the folder of a run, or of several, the baseline first.")
    cli.use_compilation_cache()
    temperatures = cli.refusing(_temperatures)
    options = {"allow_imports": _ALLOW_IMPORTS.value}
    translators = {
        name: cli.refusing(networks.restored, pathlib.Path(name), _CHECKPOINT.value, **options)
        for name in dict.fromkeys(given)
    }
    cli.refusing(networks.check_same_data, translators)
    cli.refusing(bleu.require)
    results = {}
    for folder, translator in translators.items():
        config = translator.config
        dataset = cli.refusing(
            building.data_set, config.data.name, config.data.options, building.DATA_DIR.value
        )
        cli.refusing(subword_files.check, pathlib.Path(folder), dataset.vocabulary)
        sources, references = dataset.texts["test"]
        count = _SENTENCES.value or len(sources)
        sources, references = sources[:count], references[:count]
        results[folder] = cli.refusing(scored, translator, dataset, sources, temperatures)
    named = dict(zip(short_names(list(results)), results.values(), strict=True))
    result_page = cli.refusing(page, named, sources, references, dataset.description)
    out = pathlib.Path(_OUT.value) if _OUT.value else pathlib.Path(given[0]) / "translation"
    cli.refusing(out.mkdir, parents=True, exist_ok=True)
    values = json.dumps(result_page.values, indent=1, ensure_ascii=False)
    with writing.staged(out) as new:
        (new / "translation.md").write_text(result_page.text, encoding="utf-8")
        (new / "translation.json").write_text(values + "\n", encoding="utf-8")
        plots.save(drawn(result_page.values, temperatures), new / "temperature.png")
        for name, result in named.items():
            lines = "\n".join(result.translations[1.0]) + "\n"
            of_file = name.replace("/", "_")
            (new / f"translations_{of_file}.txt").write_text(lines, encoding="utf-8")
            result.tokens.save(new / f"tokens_{of_file}")
    print(result_page.text)
    print(f"written to {out}: translation.md, translation.json, temperature.png and others")
    return 0


if __name__ == "__main__":
    cli.run(main, positional=True)
