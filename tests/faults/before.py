"""Functions that a fork calls before its binary: they break the system under it, or shorten it."""

import ctypes
import errno
import os
import random
import resource
import signal
import subprocess


def shorten_the_map():
    """Leave one setting of two seeds and eight epochs in the map, saved after every epoch."""
    from experiments.map import settings

    settings.LOSSES = {name: settings.LOSSES[name] for name in ("adafocal",)}
    settings.WEIGHT_DECAYS, settings.SEEDS = (0.0,), (1, 2)
    original = settings.config_of

    def config_of(setting):
        config = original(setting)
        config.num_epochs, config.model.options.hidden = 8, ()
        config.run.checkpoint_every_epochs = 1
        return config

    settings.config_of = config_of


def signal_in_save(number, count):
    """Send a signal to this process while it writes its checkpoint number `count`, from 1 on."""
    from calib_jax.train.folder.checkpoint import Checkpoints

    original, calls = Checkpoints.save, iter(range(1, 1_000_000))

    def save(self, *args, **options):
        original(self, *args, **options)  # returns while the checkpoint is being written
        if next(calls) == count:
            signal.raise_signal(number)

    Checkpoints.save = save


def without_locks():
    """Make `flock` raise the error of a file system without locks."""
    import fcntl

    def flock(file, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = flock


def with_jumping_clock(seed):
    """Set the wall clock to another time in the same two weeks, every .1 seconds."""
    import time

    original = time.time

    def now():
        moment = int(time.monotonic() * 10)
        return original() + random.Random(f"{seed} {moment}").uniform(-7, 7) * 86_400

    time.time = now


def with_small_files(most):
    """Limit the size of files; printed text goes through a pipe, which has no such limit."""
    printer = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    os.dup2(printer.stdin.fileno(), 1)
    os.dup2(printer.stdin.fileno(), 2)
    printer.stdin.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def with_little_memory(more):
    """Limit the address space, as `ulimit -v` does, to so many bytes more than it has."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def as_a_user():
    """Drop the capabilities of root, who may write into read-only folders."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version, and this process
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
