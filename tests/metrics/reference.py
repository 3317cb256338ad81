"""Slow references in float64: loops over examples, classes and bins, nothing of the package.

First what all tests share: predictions, and samples of them. Then, under its name, a function for
each metric of the families that `test_references.py` names; the others are beside their own tests.
It takes probabilities `[n, K]`, labels `[n]`, weights `[n]` and the metric's options, and returns a
number, an array, or a tuple of those in the order of the metric's fields.
"""

import itertools
import math

import numpy as np


def softmax(logits):
    """Compute probabilities in float64."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def top_label(logits, labels):
    """Return the confidence and whether the prediction, the first of equals, is right."""
    p = softmax(logits)
    return p.max(axis=1), (p.argmax(axis=1) == labels).astype(np.float64)


def logits_of(confidence, num_classes=2):
    """Return logits [N, K] whose prediction is class 0 with the given confidence."""
    confidence = np.asarray(confidence, np.float64)
    rest = np.repeat(((1 - confidence) / (num_classes - 1))[:, None], num_classes - 1, axis=1)
    with np.errstate(divide="ignore"):
        logits = np.log(np.concatenate([confidence[:, None], rest], axis=1))
    return np.maximum(logits, -200).astype(np.float32)  # a confidence of 1 needs a finite logit


def sample(seed=0, rows=40, num_classes=3, levels=8):
    """Draw logits of few different confidences, and labels that are often the prediction."""
    rng = np.random.default_rng(seed)
    level = np.linspace(0.4, 0.97, levels)[rng.integers(0, levels, rows)]
    labels = np.where(rng.random(rows) < level - 0.1, 0, rng.integers(1, num_classes, rows))
    return logits_of(level, num_classes), labels


def mean(values, w):
    return sum(a * b for a, b in zip(values, w, strict=True)) / sum(w)


def top(p, y, excluded_class=None):
    """List confidence and hit of every example."""
    pairs = []
    for row, label in zip(p, y, strict=True):
        classes = [k for k in range(len(row)) if k != excluded_class]
        best = max(classes, key=lambda k: row[k])  # the first of equals
        pairs.append((row[best], float(best == label)))
    return [c for c, _ in pairs], [h for _, h in pairs]


# --------------------------------------------------------------------------------------------
# Averages and summaries.


def accuracy(p, y, w, excluded_class=None):
    return mean(top(p, y, excluded_class)[1], w)


def error(p, y, w):
    return mean([1 - hit for hit in top(p, y)[1]], w)


def top_k(p, y, w, k=5):
    return mean(
        [label in np.argsort(-row, kind="stable")[:k] for row, label in zip(p, y, strict=True)], w
    )


def nll(p, y, w):
    return mean([-math.log(row[label]) for row, label in zip(p, y, strict=True)], w)


def brier(p, y, w):
    def distance(row, label):
        return sum((row[k] - (k == label)) ** 2 for k in range(len(row)))

    return mean([distance(row, label) for row, label in zip(p, y, strict=True)], w)


def ranked_probability_score(p, y, w):
    def score(row, label):
        num_classes = len(row)
        steps = [(sum(row[: k + 1]) - (label <= k)) ** 2 for k in range(num_classes - 1)]
        return sum(steps) / (num_classes - 1)

    return mean([score(row, label) for row, label in zip(p, y, strict=True)], w)


def entropies(p):
    return [-sum(q * math.log(q) for q in row if q > 0) for row in p]


def mean_confidence(p, y, w):
    return mean(top(p, y)[0], w)


def mean_entropy(p, y, w):
    return mean(entropies(p), w)


def sharpness(p, y, w):
    confidence = top(p, y)[0]
    centre = mean(confidence, w)
    return mean([(c - centre) ** 2 for c in confidence], w)


def signed_gap(p, y, w):
    confidence, hit = top(p, y)
    return mean(confidence, w) - mean(hit, w)


def by_correctness(p, y, w):
    confidence, hit = top(p, y)
    losses = [-math.log(row[label]) for row, label in zip(p, y, strict=True)]

    def group(kind):
        own = [weight * (h == kind) for weight, h in zip(w, hit, strict=True)]
        return (
            sum(own) / sum(w),
            *(mean(values, own) for values in (confidence, entropies(p), losses)),
        )

    return group(1.0), group(0.0)


# --------------------------------------------------------------------------------------------
# Bins of equal width.


def in_bin(value, b, num_bins, edges="right"):
    """Tell whether a value falls into bin b; no random value lies on an edge."""
    if edges == "right":
        return b / num_bins < value <= (b + 1) / num_bins or (b == 0 and value == 0)
    if edges == "left":
        return b / num_bins <= value < (b + 1) / num_bins or (b == num_bins - 1 and value == 1)
    return max(math.ceil(num_bins * value - 1), 0) == b


def binned(values, hits, w, num_bins, edges="right"):
    """List weight, mean value and mean hit of every bin; NaN where a bin is empty."""
    rows = []
    for b in range(num_bins):
        inside = [i for i, v in enumerate(values) if in_bin(v, b, num_bins, edges) and w[i] > 0]
        weight = sum(w[i] for i in inside)
        if not inside:
            rows.append((0.0, math.nan, math.nan))
            continue
        rows.append(
            (
                weight,
                sum(w[i] * values[i] for i in inside) / weight,
                sum(w[i] * hits[i] for i in inside) / weight,
            )
        )
    return rows


def fixed(p, y, w, num_bins=15, edges="right", excluded_class=None):
    return binned(*top(p, y, excluded_class), w, num_bins, edges)


def ece(p, y, w, **options):
    bins = fixed(p, y, w, **options)
    return sum(n * abs(c - a) for n, c, a in bins if n) / sum(w)


def mce(p, y, w, **options):
    return max(abs(c - a) for n, c, a in fixed(p, y, w, **options) if n)


def average_calibration_error(p, y, w, **options):
    gaps = [abs(c - a) for n, c, a in fixed(p, y, w, **options) if n]
    return sum(gaps) / len(gaps)


def rms_calibration_error(p, y, w, **options):
    bins = fixed(p, y, w, **options)
    return math.sqrt(sum(n * (c - a) ** 2 for n, c, a in bins if n) / sum(w))


def overconfidence(p, y, w, **options):
    bins = fixed(p, y, w, **options)
    return sum(n * (c - a) for n, c, a in bins if n and c > a) / sum(w)


def underconfidence(p, y, w, **options):
    bins = fixed(p, y, w, **options)
    return sum(n * (a - c) for n, c, a in bins if n and a > c) / sum(w)


def brier_decomposition(p, y, w, **options):
    bins = fixed(p, y, w, **options)
    total, base = sum(w), mean(top(p, y, options.get("excluded_class"))[1], w)
    return (
        sum(n * (c - a) ** 2 for n, c, a in bins if n) / total,
        sum(n * (a - base) ** 2 for n, c, a in bins if n) / total,
        mean([(h - base) ** 2 for h in top(p, y, options.get("excluded_class"))[1]], w),
    )


# --------------------------------------------------------------------------------------------
# Bins of equal mass.


def mass_bins(p, y, w, num_bins=15, excluded_class=None):
    """Pour the examples, in order of confidence, into bins of equal size; equals together.

    Returns weight, mean confidence and mean hit per bin, and the edges.
    """
    groups = {}  # confidence -> weight, hits
    for c, h, weight in zip(*top(p, y, excluded_class), w, strict=True):
        if weight > 0:
            n, hits = groups.get(c, (0.0, 0.0))
            groups[c] = (n + weight, hits + weight * h)
    size = sum(w) / num_bins
    bins = [[0.0, 0.0, 0.0] for _ in range(num_bins)]
    edges = [min(groups)]
    b, room = 0, size
    for c in sorted(groups):
        n, hits = groups[c]
        share = hits / n
        while n > 0:
            poured = min(n, room) if b < num_bins - 1 else n
            for column, amount in enumerate((1.0, c, share)):
                bins[b][column] += poured * amount
            n, room = n - poured, room - poured
            if room <= 1e-9 * size and b < num_bins - 1:
                edges.append(c)
                b, room = b + 1, size
            if n < 1e-9 * size:
                break
    edges.append(max(groups))
    return [(n, c / n, a / n) for n, c, a in bins], edges


def released_bins(p, y, w, num_bins=15, excluded_class=None):
    """Cut the copies of all examples at interpolated positions; examples fall whole."""
    confidence, hit = top(p, y, excluded_class)
    copies = [i for i, weight in enumerate(w) for _ in range(int(weight))]
    ordered = sorted(confidence[i] for i in copies)
    count = len(ordered)
    edges = np.interp(np.linspace(0, count, num_bins + 1), np.arange(count), ordered)
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = [i for i in copies if low < confidence[i] <= high]
        n = len(inside)
        means = [sum(v[i] for i in inside) / n if n else math.nan for v in (confidence, hit)]
        rows.append((float(n), *means))
    return rows, edges


MASS = {"mass": mass_bins, "released": released_bins}


def adaptive_ece(p, y, w, binning="mass", **options):
    bins, _ = MASS[binning](p, y, w, **options)
    return sum(n * abs(c - a) for n, c, a in bins if n) / sum(w)


def adaptive_mce(p, y, w, binning="mass", **options):
    bins, _ = MASS[binning](p, y, w, **options)
    return max(abs(c - a) for n, c, a in bins if n)


# --------------------------------------------------------------------------------------------
# Reliability curves.


def wilson(n, a, level):
    """Solve (a - x)^2 = z^2 x (1 - x) / n for x; z by bisection of the normal distribution."""
    low, high = 0.0, 40.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle / math.sqrt(2)) < level else (low, middle)
    z2 = low**2
    return sorted(np.roots([1 + z2 / n, -(2 * a + z2 / n), a**2]).real)


def curve(bins, edges, level):
    bands = [wilson(n, a, level) if n else (math.nan, math.nan) for n, _, a in bins]
    n, c, a = (np.asarray(column) for column in zip(*bins, strict=True))
    low, high = (np.asarray(column) for column in zip(*bands, strict=True))
    return np.asarray(edges[:-1]), np.asarray(edges[1:]), n, c, a, c - a, low, high


def reliability(p, y, w, level=0.9, num_bins=15, **options):
    edges = [b / num_bins for b in range(num_bins + 1)]
    return curve(fixed(p, y, w, num_bins=num_bins, **options), edges, level)


def adaptive_reliability(p, y, w, level=0.9, binning="mass", **options):
    return curve(*MASS[binning](p, y, w, **options), level)


def classwise_reliability(p, y, w, level=0.9, num_bins=15):
    edges = [b / num_bins for b in range(num_bins + 1)]
    curves = [
        curve(binned(p[:, k], (y == k).astype(float), w, num_bins), edges, level)
        for k in range(p.shape[1])
    ]
    columns = [np.stack(column) for column in zip(*curves, strict=True)]
    return columns[0][0], columns[1][0], *columns[2:]


# --------------------------------------------------------------------------------------------
# Every class.


def per_class_ece(p, y, w, num_bins=15, zero_counts=True, excluded_class=None, classes="all"):
    p = np.array(p)
    if excluded_class is not None:
        p[:, excluded_class] = 0
    errors = []
    for k in range(p.shape[1]):
        own = [
            weight if zero_counts or q > 0 else 0.0 for weight, q in zip(w, p[:, k], strict=True)
        ]
        bins = binned(p[:, k], (y == k).astype(float), own, num_bins)
        errors.append(sum(n * abs(c - a) for n, c, a in bins if n) / sum(w))
    if classes == "released":
        last = max(label for label, weight in zip(y, w, strict=True) if weight > 0)
        errors[last + 1 :] = [math.nan] * (len(errors) - last - 1)
    return np.asarray(errors)


def classwise_ece(p, y, w, classes="all", **options):
    return np.nanmean(per_class_ece(p, y, w, classes=classes, **options))


# --------------------------------------------------------------------------------------------
# Confusion.


def confusion_counts(p, y, w):
    counts = np.zeros((p.shape[1], p.shape[1]))
    for row, label, weight in zip(p, y, w, strict=True):
        counts[label, int(np.argmax(row))] += weight
    return counts


def quotients(tops, bottoms):
    return np.asarray([t / b if b else math.nan for t, b in zip(tops, bottoms, strict=True)])


def per_class_recall(p, y, w):
    n = confusion_counts(p, y, w)
    return quotients(np.diag(n), n.sum(1))


def per_class_precision(p, y, w):
    n = confusion_counts(p, y, w)
    return quotients(np.diag(n), n.sum(0))


def per_class_iou(p, y, w):
    n = confusion_counts(p, y, w)
    return quotients(np.diag(n), [n[k].sum() + n[:, k].sum() - n[k, k] for k in range(len(n))])


def mean_recall(p, y, w):
    return np.nanmean(per_class_recall(p, y, w))


def mean_precision(p, y, w):
    return np.nanmean(per_class_precision(p, y, w))


def mean_iou(p, y, w):
    return np.nanmean(per_class_iou(p, y, w))


def frequency_weighted_iou(p, y, w):
    share = confusion_counts(p, y, w).sum(1) / sum(w)
    return sum(s * iou for s, iou in zip(share, per_class_iou(p, y, w), strict=True) if s > 0)
