"""Rules of verdicts: from the values of a statistic to holds, does not hold, or undecided."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import scipy.special

from experiments.papers.judge.values import Value

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
SIZE = 0.05  # one-sided, the size of a test by a 90 % interval

Values = Mapping[str, Value]


class Judgement(NamedTuple):
    """The outcome of a rule.

    Attributes:
      state: holds, does not hold or undecided.
      p: the p-value of the hypothesis that the state rejects, of an undecided claim the smaller
        one; None where nothing is random.
    """

    state: str
    p: float | None = None


class Rule(NamedTuple):
    """A rule.

    Attributes:
      words: when the claim holds, and when it does not.
      judge: from the values to the outcome.
      names: the names of the values it needs.
    """

    words: str
    judge: Callable[[Values], Judgement]
    names: tuple[str, ...] = ()


def above(*names: str, margin: float = 0.0) -> Rule:
    """Holds if all 90 % intervals lie above the margin; does not hold if one lies below it."""
    return _sided(names, margin, "above", "below")


def below(*names: str, margin: float = 0.0) -> Rule:
    """Holds if all 90 % intervals lie below the margin; does not hold if one lies above it."""
    return _sided(names, margin, "below", "above")


def none_above(*names: str) -> Rule:
    """Holds if no 90 % interval lies above 0; does not hold if one does. A wide interval holds.

    >>> none_above("a").judge({"a": Value(3.0, 1.0)}).state
    'does not hold'
    """

    def judge(values: Values) -> Judgement:
        least = min(values[name].p_above() for name in names)
        if least >= SIZE:
            return Judgement(HOLDS)
        return Judgement(FAILS, min(1.0, least * len(names)))

    words = f"holds if no 90 % interval of {listed(names)} lies above 0; does not hold if one does"
    return Rule(words, judge, names)


def true(*names: str) -> Rule:
    """Holds if all values are 1; does not hold otherwise. For checks that nothing random enters.

    >>> true("a", "b").judge({"a": Value(1), "b": Value(0)}).state
    'does not hold'
    """
    words = f"holds if {listed(names)} {'is' if len(names) == 1 else 'are'} true"
    words += "; does not hold otherwise"
    return decided(words, lambda v: all(v[name].value == 1 for name in names), names=names)


def decided(
    words: str,
    holds: Callable[[Values], bool],
    fails: Callable[[Values], bool] | None = None,
    names: tuple[str, ...] = (),
) -> Rule:
    """Holds where `holds` is met; does not hold where `fails` is, or by default elsewhere.

    Where neither is met, the claim is undecided.

    >>> decided("a is 1", lambda values: values["a"].value == 1).judge({"a": Value(2)}).state
    'does not hold'
    """

    def judge(values: Values) -> Judgement:
        if holds(values):
            return Judgement(HOLDS)
        return Judgement(FAILS if fails is None or fails(values) else UNDECIDED)

    return Rule(words, judge, names)


def at_least(name: str, holds: float, fails: float | None = None) -> Rule:
    """Holds if a value is at least `holds`; does not hold if it is at most `fails`, if given.

    >>> at_least("count", 11, 5).judge({"count": Value(8)}).state
    'undecided'
    """
    words = f"holds if {name} is at least {holds:g}"
    words += "" if fails is None else f"; does not hold if it is at most {fails:g}"
    return decided(
        words + "; undecided otherwise",
        lambda values: values[name].value >= holds,
        lambda values: fails is not None and values[name].value <= fails,
        (name,),
    )


def within(name: str, low: float, high: float) -> Rule:
    """Holds if the 90 % interval lies in [low, high]; does not hold if it lies outside.

    >>> [within("T", 0.9, 1.1).judge({"T": Value(t, 0.04)}).state for t in (1.0, 1.1, 1.3)]
    ['holds', 'undecided', 'does not hold']
    """

    def judge(values: Values) -> Judgement:
        value = values[name]
        p_inside = max(value.p_above(low), value.p_below(high))
        p_outside = min(value.p_below(low), value.p_above(high))
        random = value.deviation is not None
        if p_inside < SIZE or (not random and low <= value.value <= high):
            return Judgement(HOLDS, p_inside if random else None)
        if p_outside < SIZE:
            return Judgement(FAILS, p_outside if random else None)
        return Judgement(UNDECIDED, min(p_inside, p_outside))

    words = (
        f"holds if the 90 % interval of {name} lies in [{low:g}, {high:g}]; does not hold if it"
        " lies outside; undecided otherwise"
    )
    return Rule(words, judge, (name,))


def given(condition: Rule, rule: Rule) -> Rule:
    """Judge by a rule where a condition holds; undecided where it does not.

    >>> decided = given(at_least("seeds", 3), above("change"))
    >>> decided.judge({"seeds": Value(1), "change": Value(3.0, 1.0)}).state
    'undecided'
    """

    def judge(values: Values) -> Judgement:
        outcome = rule.judge(values)
        met = condition.judge(values).state == HOLDS
        return outcome if met else Judgement(UNDECIDED, outcome.p)

    first, _, _ = condition.words.removeprefix("holds if ").partition(";")
    names = tuple(dict.fromkeys((*rule.names, *condition.names)))
    return Rule(f"{rule.words}; undecided, too, unless {first}", judge, names)


def agreeing(*rules: Rule) -> Rule:
    """Holds, or does not hold, if all rules say so; for claims with more than one reading.

    >>> both = agreeing(above("a"), above("b"))
    >>> both.judge({"a": Value(3.0, 1.0), "b": Value(-3.0, 1.0)}).state
    'undecided'
    """

    def judge(values: Values) -> Judgement:
        outcomes = [rule.judge(values) for rule in rules]
        random = [outcome.p for outcome in outcomes if outcome.p is not None]
        agreed = len({outcome.state for outcome in outcomes}) == 1
        return Judgement(outcomes[0].state if agreed else UNDECIDED, max(random, default=None))

    names = tuple(dict.fromkeys(name for rule in rules for name in rule.names))
    words = "; and ".join(rule.words for rule in rules)
    return Rule(f"each alone: {words}; undecided where they disagree", judge, names)


def every(*rules: Rule) -> Rule:
    """Holds if all rules hold; does not hold if one does not; undecided otherwise.

    The p-value of "holds" is the largest, since all must hold; that of "does not hold" is the
    smallest times the number of rules.
    """

    def judge(values: Values) -> Judgement:
        outcomes = [rule.judge(values) for rule in rules]
        states = {outcome.state for outcome in outcomes}
        if states == {HOLDS}:
            random = [outcome.p for outcome in outcomes if outcome.p is not None]
            return Judgement(HOLDS, max(random, default=None))
        failed = [outcome.p for outcome in outcomes if outcome.state == FAILS]
        if not failed:
            open_p = [o.p for o in outcomes if o.state == UNDECIDED and o.p is not None]
            return Judgement(UNDECIDED, max(open_p, default=None))
        random = [p for p in failed if p is not None]
        certain = len(random) < len(failed)
        return Judgement(FAILS, None if certain else min(1.0, min(random) * len(rules)))

    names = tuple(dict.fromkeys(name for rule in rules for name in rule.names))
    return Rule("all of: " + "; and ".join(rule.words for rule in rules), judge, names)


def several(*names: str, holds: int, fails: int) -> Rule:
    """Holds if `holds` or more 90 % intervals lie above 0; does not hold if at most `fails` do.

    The p-value of "k or more of m effects are positive" is that of partial conjunction (Benjamini
    and Heller 2008): m - k + 1 times the k-th smallest p-value. "Does not hold" has the p-value of
    "at least m - `fails` are negative".

    >>> rule = several("a", "b", "c", holds=2, fails=1)
    >>> rule.judge({"a": Value(3.0, 1.0), "b": Value(4.0, 1.0), "c": Value(-9.0, 1.0)}).state
    'holds'
    """
    count = len(names)

    def judge(values: Values) -> Judgement:
        p_above = sorted(values[name].p_above() for name in names)
        p_below = sorted(values[name].p_below() for name in names)
        p_holds = (count - holds + 1) * p_above[holds - 1]
        p_fails = (fails + 1) * p_below[count - fails - 1]
        positive = sum(p < SIZE for p in p_above)
        if positive >= holds:
            return Judgement(HOLDS, min(1.0, p_holds))
        if positive <= fails:
            return Judgement(FAILS, min(1.0, p_fails))
        return Judgement(UNDECIDED, min(1.0, p_holds, p_fails))

    words = (
        f"holds if {holds} or more of the {count} 90 % intervals of {listed(names)} lie above 0;"
        f" does not hold if at most {fails} do" + "; undecided in between" * (holds - fails > 1)
    )
    return Rule(words, judge, names)


def with_p(rule: Rule, *names: str) -> Rule:
    """Judge by a rule about counts, and test that means of the same seeds are above 0.

    >>> counted = with_p(at_least("count", 3), "mean")
    >>> counted.judge({"count": Value(3), "mean": Value(2.0, 1.0)})
    Judgement(state='holds', p=0.022750131948179195)
    """

    def judge(values: Values) -> Judgement:
        outcome = rule.judge(values)
        p_holds = max(values[name].p_above() for name in names)
        p_fails = min(1.0, len(names) * min(values[name].p_below() for name in names))
        p = {HOLDS: p_holds, FAILS: p_fails, UNDECIDED: min(p_holds, p_fails)}
        return Judgement(outcome.state, p[outcome.state])

    words = f"{rule.words}; p of the hypothesis that {listed(names)} is not above 0"
    return Rule(words, judge, tuple(dict.fromkeys((*rule.names, *names))))


def p_of_count(value: Value) -> float:
    """Return the p-value of the sign test: the true share of a count is at most one half.

    >>> p_of_count(Value(20, rows=20)) == 0.5**20
    True
    """
    return float(scipy.special.bdtrc(value.value - 1, value.rows, 0.5)) if value.value else 1.0


def _sided(names: tuple[str, ...], margin: float, side: str, other: str) -> Rule:
    def judge(values: Values) -> Judgement:
        chosen = [values[name] for name in names]
        p_side = [getattr(value, f"p_{side}")(margin) for value in chosen]
        p_other = [getattr(value, f"p_{other}")(margin) for value in chosen]
        random = any(value.deviation is not None for value in chosen)
        if max(p_side) < SIZE:
            return Judgement(HOLDS, max(p_side) if random else None)
        if min(p_other) < SIZE:
            return Judgement(FAILS, min(1.0, min(p_other) * len(names)) if random else None)
        return Judgement(UNDECIDED, min(max(p_side), *p_other) if random else None)

    many = len(names) > 1
    words = (
        f"holds if the 90 % interval{'s' * many} of {listed(names)} lie{'s' * (not many)} {side}"
        f" {margin:g}; does not hold if {'one' if many else 'it'} lies {other}; undecided otherwise"
    )
    return Rule(words, judge, names)


def listed(names: Sequence[str]) -> str:
    """Join names by commas and "and"."""
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
