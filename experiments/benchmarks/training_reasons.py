"""What stands in the way of a target of the training benchmark, said by what was measured."""

import math
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def reason(row: Row, rows: Sequence[Row]) -> str:
    """Explain a row that does not keep its target.

    Args:
      row: of a table.
      rows: all of that table.
    """
    known = _REASONS.get((row["task"], row["name"]))
    return known(row, rows) if known else "what stands in the way has not been found yet."


def _memory_of_calls(row: Row, rows: Sequence[Row]) -> str:
    call, lost = row["call"], row["outside"]
    more = max(math.ceil(row["seconds"] / call["piece_seconds"]) - 1, 0)
    rest = {
        "more while steps run, when checkpoints are written": lost["training"]
        - more * call["seconds"],
        "more in evaluation": lost["evaluation"],
        "between": lost["between"],
    }
    share = more * call["seconds"] / row["seconds"]
    pages = ""
    if call["memory"]:
        pages = (
            f" ({call['page_faults']:,} page faults a call, for {call['memory'] / 1e6:,.0f} MB of"
            " temporaries that XLA takes from the system anew)"
        )
    return (
        f"`train.fit` cuts an epoch into calls, so that a signal is heard; {more} more than the"
        f" program alone makes, {1e3 * call['seconds']:.0f} ms each{pages}, are {share:.1%} of the"
        " epoch. The rest, in ms: "
        + ", ".join(f"{1e3 * seconds:,.0f} {what}" for what, seconds in rest.items())
        + "."
    )


def _loss_itself(row: Row, rows: Sequence[Row]) -> str:
    more = row["loss_seconds"] - rows[0]["loss_seconds"]
    share = more / rows[0]["step_seconds"]
    return (
        f"alone the loss takes {1e6 * more:+,.0f} µs beside cross-entropy, {share:+.2%} of a step:"
        " what is above that is not the loss, but how the rest of the step was compiled around it,"
        " and noise."
    )


def _slower_convolutions(row: Row, rows: Sequence[Row]) -> str:
    peer = rows[-1]
    return (
        f"the convolutions run at {row['gflops']:.0f} GFLOP/s, and PyTorch's, by oneDNN, at"
        f" {peer['gflops']:.0f}."
    )


def _calls_of_steps(row: Row, rows: Sequence[Row]) -> str:
    more = row["step_seconds"] - rows[0]["step_seconds"]
    return (
        f"a step is a call, and takes {1e3 * more:.0f} ms more than in the compiled loop: the"
        " batch is brought to the device, and memory taken from the system anew."
    )


def _filled(row: Row, rows: Sequence[Row]) -> str:
    beside = next(
        other for other in rows if other["name"] == "vmap" and other["model"] == row["model"]
    )
    slower = beside["ratio"]["median"]
    return (
        f"one run fills this device (side by side, by vmap, they are {slower:.2f} times as fast),"
        " so that one program saves compilation alone: with it,"
        f" {row['whole_ratio']:.2f} times as fast."
    )


_REASONS: dict[tuple[str, str], Callable[[Row, Sequence[Row]], str]] = {
    ("epoch", "one compiled loop"): _slower_convolutions,
    ("epoch", "step by step"): _calls_of_steps,
    ("objective", "adafocal"): _loss_itself,
    ("objective", "recall"): _loss_itself,
    ("fit", "an epoch of train.fit"): _memory_of_calls,
    ("seeds", "map"): _filled,
}
