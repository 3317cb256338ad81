"""A process that has imported the libraries, and forks for every binary that a test runs.

Their import takes longer than most of what the tests run. A line of the input is a request in JSON,
and each request has one line of output:

    a module, its arguments, its environment, a file for all that it prints, and functions to call
    before it, by import path with their arguments: the process id of the binary
    "wait", a process id: its exit code, once it has ended
    "poll", a process id: its exit code, or null while it runs
"""

import gc
import importlib
import json
import os
import runpy
import sys
import warnings

from tests import programs

LIBRARIES = (
    *("jax", "flax.linen", "optax", "orbax.checkpoint", "ml_collections", "absl.app"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "scipy.special", "scipy.stats"),
    *("calib_jax.losses", "calib_jax.metrics", "calib_jax.calibrators", "calib_jax.models"),
    *("calib_jax.data", "calib_jax.train", "calib_jax.plots", "calib_jax.report"),
)


def next_request():
    """Fork for every binary, and return its request in the child."""
    for line in sys.stdin:
        request = json.loads(line)
        if "module" in request:
            child = os.fork()
            if child == 0:
                return request
            print(child, flush=True)
            continue
        (kind, child), *_ = request.items()
        ended, status = os.waitpid(child, os.WNOHANG if kind == "poll" else 0)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
    sys.exit()


for library in LIBRARIES:
    importlib.import_module(library)
programs.share(os.environ["CALIB_JAX_TEST_PROGRAMS"])
# Nothing has run on a device before the fork, so JAX has no threads yet.
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
# A fork that ends shall not look at every object of the libraries, which would copy it.
gc.collect()
gc.freeze()

request = next_request()
output = os.open(request["output"], os.O_WRONLY | os.O_CREAT)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(output, 1)
os.dup2(output, 2)
os.environ.clear()
os.environ.update(request["environment"])
# As `python -m` makes it.
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.argv = ["-m", *request["arguments"]]
for path, *arguments in request["before"]:
    module, _, name = path.partition(":")
    getattr(importlib.import_module(module), name)(*arguments)
runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
