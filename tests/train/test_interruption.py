"""Signals while training: the first is recorded, and a second Ctrl-C ends the process at once."""

import os
import signal
import sys

import pytest

from calib_jax.train.loop.interruption import recorded_signals


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def codes(monkeypatch):
    result = []

    def end(code):
        result.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return result


def test_a_second_ctrl_c_ends_the_process(codes, capsys):
    before = signal.getsignal(signal.SIGINT)
    with recorded_signals() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.signal == signal.SIGINT
        assert codes == []
        with pytest.raises(Ended):
            signal.raise_signal(signal.SIGINT)
    assert codes == [130]
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr() == ("", "")


def test_in_a_session_it_is_an_exception(codes, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with recorded_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert codes == []


def test_sigterm_and_then_ctrl_c_are_both_recorded(codes):
    with recorded_signals() as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interruption.name == "SIGTERM"
        signal.raise_signal(signal.SIGINT)
        assert interruption.name == "Ctrl-C"
    assert codes == []
