"""References of the stateless objectives, in float64 NumPy: loops and formulas of the papers.

A reference is a function (logits, labels, **options) -> [N]; with `constants_at` a weight is held.
"""

from functools import partial
from typing import NamedTuple

import numpy as np


class Probabilities(NamedTuple):
    """Terms of the formulas of the losses, for logits [N, K] and labels [N]."""

    log: np.ndarray  # [N, K] log p_k
    all: np.ndarray  # [N, K] p_k
    top: np.ndarray  # [N] largest p_k
    predicted: np.ndarray  # [N] the class of the largest logit, the first one at ties
    log_true: np.ndarray  # [N] log p_y
    true: np.ndarray  # [N] p_y
    rest: np.ndarray  # [N] 1 - p_y
    cross_entropy: np.ndarray  # [N] -log p_y
    hot: np.ndarray  # [N, K] one-hot labels
    distance: np.ndarray  # [N, K] |one-hot - p|


def logsumexp(values):
    """Return the log of the sum of exponentials over the last axis."""
    largest = np.max(values, axis=-1)
    return largest + np.log(np.sum(np.exp(values - largest[..., None]), axis=-1))


def probabilities(logits, labels):
    """Return the softmax of the logits, seen from the labels.

    1 - p_y and the cross-entropy come from the log-odds of y against the OTHER classes: from p_y
    they would have no digits left where it is close to 1.
    """
    logits = np.asarray(logits, np.float64)
    labels = np.asarray(labels)
    rows, num_classes = np.arange(len(labels)), logits.shape[-1]
    log = logits - logsumexp(logits)[:, None]
    others = np.arange(num_classes) != labels[:, None]
    other_logits = logits[others].reshape(len(labels), num_classes - 1)
    others_minus_true = logsumexp(other_logits) - logits[rows, labels]
    # 1 - p_y = 1 / (1 + exp(-d)), -log p_y = log(1 + exp(d)), d = the others against the true
    rest = np.exp(-np.logaddexp(0.0, -others_minus_true))
    cross_entropy = np.logaddexp(0.0, others_minus_true)
    hot = np.eye(num_classes)[labels]
    # equal logits must give equal probabilities, so p_y in here is computed like any other p_k
    everything = np.exp(log)
    return Probabilities(
        log=log,
        all=everything,
        top=everything.max(axis=-1),
        predicted=np.argmax(logits, axis=-1),
        log_true=-cross_entropy,
        true=everything[rows, labels],
        rest=rest,
        cross_entropy=cross_entropy,
        hot=hot,
        distance=np.where(hot == 1, rest[:, None], everything),
    )


def seen_by_weight(logits, labels, weighting, constants_at):
    """Return the probabilities of which a loss' weight is a function.

    With weighting "gradient" they are constants, taken at `constants_at` where that is given.
    """
    detached = weighting == "gradient" and constants_at is not None
    return probabilities(constants_at if detached else logits, labels)


def brier(logits, labels):
    """sum_k (q_k - p_k)^2."""
    return np.sum(probabilities(logits, labels).distance ** 2, axis=-1)


def cross_entropy(logits, labels):
    """-log p_y."""
    return probabilities(logits, labels).cross_entropy


def focal(logits, labels, *, gamma=3.0, weighting="loss", constants_at=None):
    """-(1 - p_y)^gamma log p_y."""
    weight = seen_by_weight(logits, labels, weighting, constants_at).rest ** gamma
    return weight * probabilities(logits, labels).cross_entropy


def inverse_focal(logits, labels, *, gamma=1.0, weighting="loss", constants_at=None):
    """-(1 + p_y)^gamma log p_y."""
    weight = (1 + seen_by_weight(logits, labels, weighting, constants_at).true) ** gamma
    return weight * probabilities(logits, labels).cross_entropy


def label_smoothing(logits, labels, *, alpha=0.05, spread="others"):
    """-sum_k t_k log p_k; t spreads alpha over the wrong classes, or over all of them."""
    p = probabilities(logits, labels)
    num_classes = p.all.shape[-1]
    if spread == "others":
        target = np.where(p.hot == 1, 1 - alpha, alpha / (num_classes - 1))
    else:
        target = (1 - alpha) * p.hot + alpha / num_classes
    return -np.sum(target * p.log, axis=-1)


def uncertainty(p, gamma, beta, reading="norm"):
    """||q - p||_beta^gamma, or the papers' page read literally: sum_k |q_k - p_k|^gamma."""
    if reading == "sum":
        return np.sum(p.distance**gamma, axis=-1)
    # the largest distance is taken out first: at p_y = 1 the powers would underflow
    largest = p.distance.max(axis=-1)
    scaled = p.distance / np.where(largest > 0, largest, 1)[:, None]
    return (largest * np.sum(scaled**beta, axis=-1) ** (1 / beta)) ** gamma


def generalized_brier(
    logits, labels, *, gamma=2.0, beta=2.0, reading="norm", weighting="gradient", constants_at=None
):
    """-u log p_y."""
    p = seen_by_weight(logits, labels, weighting, constants_at)
    return uncertainty(p, gamma, beta, reading) * probabilities(logits, labels).cross_entropy


def bsce_adaptive_gra(
    logits, labels, *, thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 3.0), beta=2.0, constants_at=None
):
    """-||q - p||_beta^gamma(p_y) log p_y with FLSD's gamma, the weight detached."""
    p = seen_by_weight(logits, labels, "gradient", constants_at)
    weight = uncertainty(p, gamma_of(p.true, thresholds, gammas), beta)
    return weight * probabilities(logits, labels).cross_entropy


def runner_up_probability(p, kind):
    """Return p_j [N] for one of the three readings of "the second most likely class"."""
    result = []
    for everything, true, hot in zip(p.all, p.true, p.hot, strict=True):
        if kind == "below":  # the released code: strictly below p_y, 0 where there is none
            result.append(max((q for q in everything if q < true), default=0.0))
        elif kind == "wrong":
            result.append(max(everything[hot == 0]))
        elif kind == "second":
            result.append(sorted(everything)[-2])
    return np.array(result)


def dual_focal(
    logits,
    labels,
    *,
    gamma=5.0,
    runner_up="below",
    detach_runner_up=False,
    weighting="loss",
    constants_at=None,
):
    """-(1 - p_y + p_j)^gamma log p_y."""
    rest = seen_by_weight(logits, labels, weighting, constants_at).rest
    if detach_runner_up:
        weighting = "gradient"
    other = runner_up_probability(
        seen_by_weight(logits, labels, weighting, constants_at), runner_up
    )
    return (rest + other) ** gamma * probabilities(logits, labels).cross_entropy


def gamma_of(true, thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 3.0)):
    """Return gamma [N]: the first below the first threshold, a threshold opens the next stage."""
    return np.array(
        [
            gammas[0] if p < thresholds[0] else gammas[1] if p < thresholds[1] else gammas[2]
            for p in true
        ]
    )


def flsd(
    logits,
    labels,
    *,
    thresholds=(0.2, 0.5),
    gammas=(5.0, 3.0, 3.0),
    weighting="loss",
    constants_at=None,
):
    """-(1 - p_y)^gamma(p_y) log p_y; gamma is constant between its thresholds."""
    p = seen_by_weight(logits, labels, weighting, constants_at)
    weight = p.rest ** gamma_of(p.true, thresholds, gammas)
    return weight * probabilities(logits, labels).cross_entropy


def negative_entropy(logits, labels, *, gamma=0.0):
    """-(1 - p_y)^gamma H(p); p log p is 0 where p is 0."""
    p = probabilities(logits, labels)
    log = np.where(p.all > 0, p.log, 0.0)
    return p.rest**gamma * np.sum(p.all * log, axis=-1)


def entropy_regularized(logits, labels, *, scale=1.0, gamma=0.0):
    """-log p_y plus scale times the negative entropy."""
    penalty = negative_entropy(logits, labels, gamma=gamma)
    return probabilities(logits, labels).cross_entropy + scale * penalty


def focal_entropy_regularized(logits, labels, *, focal_gamma=3.0, scale=1.0, gamma=0.0):
    """-(1 - p_y)^focal_gamma log p_y plus scale times the negative entropy."""
    p = probabilities(logits, labels)
    focal = p.rest**focal_gamma * p.cross_entropy
    return focal + scale * negative_entropy(logits, labels, gamma=gamma)


def margin_smoothing(logits, labels, *, margin=10.0, alpha=0.1, class_reduction="mean"):
    """-log p_y plus alpha times the excess of each class, by a loop over classes."""
    terms = probabilities(logits, labels).cross_entropy
    num_classes = logits.shape[-1]
    for k in range(num_classes):
        excess = np.maximum(np.max(logits, axis=-1) - logits[:, k] - margin, 0)
        terms = terms + alpha * excess / (num_classes if class_reduction == "mean" else 1)
    return terms


def max_suppression(logits, labels, *, alpha=0.1):
    """-log p_y plus alpha times the largest logit minus the mean of all."""
    largest, mean = np.max(logits, axis=-1), np.mean(logits, axis=-1)
    return probabilities(logits, labels).cross_entropy + alpha * (largest - mean)


def logit_norm(logits, labels, *, tau=0.04):
    """-log softmax(z / (tau (|z| + 1e-7)))_y."""
    norm = np.sqrt(np.sum(logits**2, axis=-1, keepdims=True)) + 1e-7
    return probabilities(logits / (tau * norm), labels).cross_entropy


def dca(logits, labels, *, scale=1.0):
    """-log p_y plus scale times |mean confidence - accuracy|."""
    p = probabilities(logits, labels)
    gap = np.mean(p.top) - np.mean(p.predicted == labels)
    return p.cross_entropy + scale * abs(gap)


def mdca_value(logits, labels, weights=None):
    """Sum over classes |mean p_k - mean [y = k]|, by a loop over classes, over their number."""
    p = probabilities(logits, labels).all
    weights = np.ones(len(labels)) if weights is None else weights
    gaps = [
        abs(np.average(p[:, k], weights=weights) - np.average(labels == k, weights=weights))
        for k in range(logits.shape[-1])
    ]
    return np.sum(gaps) / len(gaps)


def mdca(logits, labels, *, scale=1.0, focal_gamma=0.0):
    """(1 - p_y)^gamma (-log p_y) plus scale times the value of the batch."""
    p = probabilities(logits, labels)
    return p.rest**focal_gamma * p.cross_entropy + scale * mdca_value(logits, labels)


def pairs(confidence, hit, order):
    """Average over i the mean of e_j e_k over pairs j != k, both not i and not above i in order."""
    count = len(confidence)
    error = hit - confidence
    sums = 0.0
    for i in range(count):
        below = error[(order <= order[i]) & (np.arange(count) != i)]
        sums += np.sum(np.outer(below, below)) - np.sum(below**2)
    return sums / (count * (count - 1) * (count - 2))


def esd(logits, labels, *, scale=1.0, constants_at=None):
    """-log p_y plus scale times the mean over pairs, whose order is constant."""
    p = probabilities(logits, labels)
    held = p if constants_at is None else probabilities(constants_at, labels)
    return p.cross_entropy + scale * pairs(p.top, p.predicted == labels, held.top)


def kernel(a, b, bandwidth=0.4):
    """The Laplacian kernel."""
    return np.exp(-abs(a - b) / bandwidth)


def mmce(logits, labels, *, bandwidth=0.4):
    """sum_ij e_i e_j k(c_i, c_j) / N^2 with e = 1[correct] - confidence; no square root."""
    p = probabilities(logits, labels)
    error = (p.predicted == labels) - p.top
    pairs = np.outer(error, error) * kernel(p.top[:, None], p.top, bandwidth)
    return np.sum(pairs) / len(labels) ** 2


def mmce_weighted(logits, labels, *, bandwidth=0.4, double_normalization=False):
    """Distance of the correct and the wrong examples' confidences, each group with its own mean.

    The released code divides by the group sizes twice (`double_normalization`): by the number of
    pairs in the mean and again, plus 1e-5, outside of it.
    """
    p = probabilities(logits, labels)
    right = p.predicted == labels
    groups = {True: p.top[right], False: p.top[~right]}
    if not groups[True].size or not groups[False].size:
        return 0.0
    total = 0.0
    for one, tops in groups.items():
        for other, other_tops in groups.items():
            errors = np.outer(1 - tops if one else tops, 1 - other_tops if other else other_tops)
            term = np.mean(errors * kernel(tops[:, None], other_tops, bandwidth))
            if double_normalization:
                term = term / (errors.size + 1e-5)
            total += term if one == other else -term
    return np.sqrt(total + 1e-10)


def mmce_objective(logits, labels, *, scale=2.0, bandwidth=0.4):
    """Cross-entropy plus scale times MMCE."""
    penalty = mmce(logits, labels, bandwidth=bandwidth)
    return probabilities(logits, labels).cross_entropy + scale * penalty


def mmce_weighted_objective(
    logits, labels, *, scale=2.0, bandwidth=0.4, double_normalization=False
):
    """Cross-entropy plus scale times the weighted MMCE."""
    penalty = mmce_weighted(
        logits, labels, bandwidth=bandwidth, double_normalization=double_normalization
    )
    return probabilities(logits, labels).cross_entropy + scale * penalty


def mmce_gra(logits, labels, *, bandwidth=0.4, constants_at=None):
    """Cross-entropy times the detached MMCE of the batch."""
    fixed = logits if constants_at is None else constants_at
    penalty = mmce(fixed, labels, bandwidth=bandwidth)
    return penalty * probabilities(logits, labels).cross_entropy


def soft_ece(logits, labels, *, num_bins=15, rank_sharpness=100.0, bin_temperature=0.01):
    """(1/N) sum_b |sum_n w_nb (accuracy_n - confidence_n)|."""
    p = probabilities(logits, labels)
    gaps = np.zeros(num_bins)
    for probability, true, top in zip(p.all, p.true, p.top, strict=True):
        height = np.array(
            [
                top * b - sum((i - 1) / num_bins for i in range(1, b + 1))
                for b in range(1, num_bins + 1)
            ]
        )
        height /= bin_temperature
        membership = np.exp(height - logsumexp(height[None])[0]) + 1e-6
        membership /= 1 + (num_bins + 1) * 1e-6
        # the rank counts the true class itself as a half
        difference = rank_sharpness * (probability - true)
        rank = 0.5 + np.sum(np.exp(-np.logaddexp(0.0, -difference)))
        accuracy = max(2 - rank, 0.0)
        gaps += membership * (accuracy - top)
    return np.sum(np.abs(gaps)) / len(labels)


def soft_ece_objective(
    logits,
    labels,
    *,
    scale=1.0,
    cross_entropy_scale=1.0,
    num_bins=15,
    rank_sharpness=100.0,
    bin_temperature=0.01,
):
    """Cross-entropy and the soft ECE, each with its scale."""
    penalty = soft_ece(
        logits,
        labels,
        num_bins=num_bins,
        rank_sharpness=rank_sharpness,
        bin_temperature=bin_temperature,
    )
    return cross_entropy_scale * probabilities(logits, labels).cross_entropy + scale * penalty


def jaccard_loss(true, wrong):
    """1 - IoU of a class that occurs where `true`, if exactly the pixels `wrong` are mistaken."""
    predicted = true ^ wrong
    return 1 - np.sum(true & predicted) / np.sum(true | predicted)


def extension(logits, labels):
    """Equations 8 and 11: errors in descending order, weighted by the growth of the loss."""
    p = probabilities(logits, labels).all
    values = []
    for k in np.unique(labels):
        true = labels == k
        errors = np.where(true, 1 - p[:, k], p[:, k])
        wrong, before, value = np.zeros(len(labels), bool), 0.0, 0.0
        for n in np.argsort(-errors):
            wrong[n] = True
            after = jaccard_loss(true, wrong)
            value += errors[n] * (after - before)
            before = after
        values.append(value)
    return np.mean(values)


def lovasz(logits, labels, *, scale=1.0, cross_entropy_scale=0.0, per_image=False):
    """Every term is the penalty plus a share of cross-entropy."""
    assert not per_image
    cross_entropy = probabilities(logits, labels).cross_entropy
    return scale * extension(logits, labels) + cross_entropy_scale * cross_entropy


def penalty(logits, labels):
    """1 - the mean IoU of classes with any probability."""
    p = probabilities(logits, labels).all
    values = []
    for k in range(p.shape[1]):
        shared = sum(row[k] for row, label in zip(p, labels, strict=True) if label == k)
        union = sum(1 if label == k else row[k] for row, label in zip(p, labels, strict=True))
        values.append(shared / union)
    return 1 - np.mean(values)


def soft_iou(logits, labels, *, scale=1.0, cross_entropy_scale=0.0, per_image=False):
    """Every term is the penalty plus a share of cross-entropy."""
    assert not per_image
    cross_entropy = probabilities(logits, labels).cross_entropy
    return scale * penalty(logits, labels) + cross_entropy_scale * cross_entropy


def hardest(cross_entropy, kept):
    """Return the part of each example among the hardest `kept`: the last one is in it in part."""
    share = np.zeros(len(cross_entropy))
    for n in np.argsort(-cross_entropy):
        share[n] = min(1.0, kept)
        kept -= share[n]
    return share


def ohem(logits, labels, *, fraction=0.7, constants_at=None):
    """Terms whose mean is the mean of the hardest part."""
    fixed = probabilities(logits if constants_at is None else constants_at, labels).cross_entropy
    share = hardest(fixed, fraction * len(labels))
    return share / fraction * probabilities(logits, labels).cross_entropy


def bootstrapped(logits, labels, *, count=512, per_image=False, constants_at=None):
    """Terms whose mean is the mean of the `count` hardest."""
    assert not per_image
    fixed = probabilities(logits if constants_at is None else constants_at, labels).cross_entropy
    kept = min(count, len(labels))
    share = hardest(fixed, kept)
    return share * len(labels) / kept * probabilities(logits, labels).cross_entropy


def shares(labels, num_classes, kernel_size, weights=None):
    """Average one-hot labels over each window; pixels outside and of weight 0 are zeros."""
    hot = np.eye(num_classes)[labels]
    if weights is not None:
        hot = np.where(weights[..., None] == 0, 0, hot)
    reach, axes = kernel_size // 2, range(1, labels.ndim)
    around = np.pad(hot, [(reach, reach) if axis in axes else (0, 0) for axis in range(hot.ndim)])
    windows = np.lib.stride_tricks.sliding_window_view(around, [kernel_size for _ in axes], axes)
    return windows.mean(axis=tuple(range(hot.ndim, windows.ndim)))


def neighbour_margin(logits, labels, *, alpha=0.1, kernel_size=3, distance="l1", weights=None):
    """-log p_y plus alpha times the mean distance of shares and logits."""
    num_classes = logits.shape[-1]
    flat = probabilities(logits.reshape(-1, num_classes), labels.reshape(-1)).cross_entropy
    gap = shares(labels, num_classes, kernel_size, weights) - logits
    size = np.abs(gap) if distance == "l1" else gap**2
    return flat.reshape(labels.shape) + alpha * np.mean(size, axis=-1)


REFERENCES = {
    "bootstrapped": bootstrapped,
    "brier": brier,
    "bsce": partial(generalized_brier, weighting="loss"),
    "bsce_adaptive_gra": bsce_adaptive_gra,
    "bsce_gra": generalized_brier,
    "cross_entropy": cross_entropy,
    "dca": dca,
    "dfl_gra": partial(dual_focal, weighting="gradient"),
    "dual_focal": dual_focal,
    "entropy_regularized": entropy_regularized,
    "esd": esd,
    "fl_gra": partial(focal, weighting="gradient"),
    "flsd53": flsd,
    "flsd532": partial(flsd, gammas=(5.0, 3.0, 2.0)),
    "flsd53_gra": partial(flsd, weighting="gradient"),
    "flsd53_text": partial(flsd, thresholds=(0.19, 0.5)),
    "focal": focal,
    "focal_entropy_regularized": focal_entropy_regularized,
    "inverse_focal": inverse_focal,
    "label_smoothing": label_smoothing,
    "logit_norm": logit_norm,
    "lovasz": lovasz,
    "margin_smoothing": margin_smoothing,
    "max_suppression": max_suppression,
    "mdca": mdca,
    "mmce": mmce_objective,
    "mmce_gra": mmce_gra,
    "mmce_weighted": mmce_weighted_objective,
    "neighbour_margin": neighbour_margin,
    "ohem": ohem,
    "soft_ece": soft_ece_objective,
    "soft_iou": soft_iou,
}
