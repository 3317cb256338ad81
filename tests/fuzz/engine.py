"""Feed one reader with many broken files, and count how it takes them.

A case is the content of a file: bytes that replace the whole file, or what stands in it under a
checksum or a length, which are made right again (`broken`). Cases are mutations of a whole file.
With atheris, a case that reaches new lines of calib_jax is mutated further.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator

HAS_ATHERIS = importlib.util.find_spec("atheris") is not None
LONGEST = 5.0  # seconds of a case
_SHOWN = 5  # failures that are printed


def instrumented() -> contextlib.AbstractContextManager[None]:
    """Let what is imported in the block count its lines for atheris, if atheris is installed."""
    if not HAS_ATHERIS or "calib_jax" in sys.modules:
        return contextlib.nullcontext()
    import atheris

    return atheris.instrument_imports(include=["calib_jax"])


class Hang(BaseException):
    """A reader took too long. No `except Exception` of a reader catches it."""


class Fuzzed:
    """The outcomes of one reader.

    Attributes:
      counts: how many files were accepted, refused, and failed in another way.
      slowest: seconds of the slowest case.
      failures: contents that failed, with what was raised.
    """

    def __init__(self, form, path: pathlib.Path, judged: Callable[..., bool]) -> None:
        self.form, self.path, self.judged = form, path, judged
        self.counts = dict.fromkeys(("accepted", "refused", "failed"), 0)
        self.slowest = 0.0
        self.failures: list[tuple[bytes, str]] = []

    def read(self, content: bytes) -> None:
        """Count the outcome of one content."""
        self.path.write_bytes(content)
        start = time.perf_counter()
        try:
            with _limited():
                accepted = self.judged(self.form, self.path, "fuzzed")
        except (Exception, Hang):
            outcome = "failed"
            self.failures.append((content, traceback.format_exc()))
        else:
            outcome = "accepted" if accepted else "refused"
        self.counts[outcome] += 1
        self.slowest = max(self.slowest, time.perf_counter() - start)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise `Hang` in the block after `LONGEST` seconds."""

    def stop(*_: object) -> None:
        raise Hang(f"more than {LONGEST} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(form, folder: pathlib.Path, judged, cases: int, seed: int, *, guided: bool) -> Fuzzed:
    """Read mutations of a format's file, which is written into a folder."""
    path = form.make(folder)
    whole = path.read_bytes()
    fuzzed = Fuzzed(form, path, judged)
    seeds = [b"\0" + whole]
    if form.inner is not None:
        seeds.append(b"\1" + _inner_content(form, whole))

    def read(case: bytes) -> None:
        content = case[1:]
        if form.inner is not None and case[:1] == b"\1":
            content = next(form.inner(whole, lambda _: iter([("", case[1:])])))[1]
        fuzzed.read(content)

    (_guided if guided else _random)(read, seeds, cases, seed)
    path.write_bytes(whole)  # a reader that keeps what it has read must not fail afterwards
    assert judged(form, path, "whole")
    return fuzzed


def _inner_content(form, whole: bytes) -> bytes:
    """Return what `form.inner` would break."""
    grabbed = []

    def ways(content: bytes) -> Iterator[tuple[str, bytes]]:
        grabbed.append(content)
        yield "", content

    next(form.inner(whole, ways))
    return grabbed[0]


def _is_text(content: bytes) -> bool:
    """Check for text, in which few random bytes leave much to read."""
    try:
        return content.decode("utf-8").replace("\n", "").replace("\t", "").isprintable()
    except UnicodeDecodeError:
        return False


def _random(read: Callable[[bytes], None], seeds: list[bytes], cases: int, seed: int) -> None:
    from tests import broken

    for number in range(cases):
        first, content = seeds[number % len(seeds)][:1], seeds[number % len(seeds)][1:]
        text = _is_text(content)
        ((_, changed),) = broken.at_random(1, seed + number, text=text)(content)
        read(first + changed)


def _guided(read: Callable[[bytes], None], seeds: list[bytes], cases: int, seed: int) -> None:
    """Run libFuzzer with its mutations and ours, half of the cases each."""
    import atheris
    import numpy as np

    from tests import broken

    done = 0
    kinds = {content[:1]: _is_text(content[1:]) for content in seeds}

    def counted(case: bytes) -> None:
        nonlocal done
        done += 1
        if done <= cases:
            read(case)

    def mutated(case: bytes, most: int, number: int) -> bytes:
        random = np.random.default_rng(number)
        are_texts = kinds.get(case[:1], False)
        if len(case) == 1 or random.random() < (0.2 if are_texts else 0.5):
            return atheris.Mutate(case, most)
        ways = broken.at_random(1, number, text=are_texts)
        return case[:1] + next(ways(case[1:]))[1][: most - 1]

    with tempfile.TemporaryDirectory() as corpus:
        for number, content in enumerate(seeds):
            pathlib.Path(corpus, str(number)).write_bytes(content)
        most = 2 * max(map(len, seeds)) + 4096
        options = [
            f"-atheris_runs={cases}",
            f"-seed={seed + 1}",
            f"-max_len={most}",
            "-rss_limit_mb=0",
        ]
        arguments = [sys.argv[0], *options, "-verbosity=0", corpus]
        atheris.Setup(arguments, counted, custom_mutator=mutated)
        with contextlib.suppress(SystemExit):
            atheris.Fuzz()


def run(name: str, cases: int, seed: int, failures: str) -> dict:
    """Fuzz one reader in this process, which may end with it, and return its row."""
    from tests.fuzz.readers import FORMATS, judged
    from tests.memory import peak

    form = FORMATS[name]
    with tempfile.TemporaryDirectory() as place:
        # A reader imports what it needs when it is first called.
        judged(form, form.make(pathlib.Path(place)), "whole")
    with tempfile.TemporaryDirectory() as place:
        before = peak(reset=True)
        fuzzed = fuzz(form, pathlib.Path(place), judged, cases, seed, guided=HAS_ATHERIS)
        memory = peak() - before
    for number, (content, text) in enumerate(fuzzed.failures):
        if failures:
            pathlib.Path(failures).mkdir(parents=True, exist_ok=True)
            pathlib.Path(failures, f"{name.replace('/', '_')}-{number}").write_bytes(content)
        if number < _SHOWN:
            print(ascii(text).replace(r"\n", "\n"), file=sys.stderr, flush=True)
    return {
        **{"reader": name, "cases": sum(fuzzed.counts.values()), **fuzzed.counts},
        **{"slowest": fuzzed.slowest, "memory": memory, "guided": HAS_ATHERIS},
    }


def run_in_fork(name: str, cases: int, seed: int, failures: str) -> dict:
    """Fuzz one reader in a fork of this process; without a row the fork has crashed.

    The fork has the libraries, whose import takes longer than a thousand cases.
    """
    context = multiprocessing.get_context("fork")
    rows, sent = context.Pipe(duplex=False)

    def child() -> None:
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 1)  # libFuzzer prints much
            sent.send(run(name, cases, seed, failures))
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    sent.close()
    try:
        row: dict = rows.recv()
    except EOFError:
        row = {"reader": name, "cases": 0, "accepted": 0, "refused": 0, "failed": 1}
        row |= {"slowest": 0, "memory": 0, "guided": HAS_ATHERIS}
    process.join()
    return row
