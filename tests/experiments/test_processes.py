"""The flags of several processes, and the clusters that JAX detects; nothing starts here."""

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments.running import processes

HERE = "127.0.0.1:9"


@pytest.fixture
def starts_with(monkeypatch):
    """Begin with some variables and flags; return the options with which JAX starts and stops."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: calls.append(options))
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: calls.append("shutdown"))
    monkeypatch.setattr(processes.multihost_utils, "process_allgather", np.atleast_1d)

    def begin(variables=None, **values):
        for name, value in (variables or {}).items():
            monkeypatch.setenv(name, value)
        for name, value in values.items():
            flags.FLAGS[name].value = value
        with processes.begin({}):
            pass
        return calls

    with flagsaver.flagsaver():
        flags.FLAGS.mark_as_parsed()
        yield begin


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
URI = {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1:1"}


@pytest.mark.parametrize(
    "variables", [SLURM, OPEN_MPI | URI, {"TPU_WORKER_HOSTNAMES": "a,b"}], ids=["s", "o", "t"]
)
def test_a_cluster_that_jax_knows(starts_with, variables):
    options, last = starts_with(variables)
    assert not {"coordinator_address", "num_processes", "process_id"} & set(options)
    assert last == "shutdown"
