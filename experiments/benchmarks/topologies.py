"""Compile five programs for an H100 or a TPU v5e without having one, and count what would run.

    python -m experiments.benchmarks.topologies --topology=h100   # needs jax-cuda13-plugin
    python -m experiments.benchmarks.topologies --topology=v5e    # needs libtpu

The programs are focal loss with its gradient and the ECE of 8,192 x 100 logits, the ECE under 100
resamples and a temperature fit of 2,000 x 10, and a step of ResNet-8 with a batch of 128. A row
counts the kernels of the compiled program, those that only copy, its largest temporary memory,
and the time that the compiler's own model expects, where it says one. Nothing is run.
"""

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import flags
from jax.experimental import topologies

from calib_jax import calibrators, losses, metrics
from experiments.benchmarks import timing
from experiments.benchmarks.training import OurLoop
from experiments.running import cli

flags.declare_key_flag("json")  # defined by `timing`
_TOPOLOGY = flags.DEFINE_enum("topology", "h100", ("h100", "v5e"), "Accelerator.")

# The properties of an H100 that its compiler reads.
_H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 }
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84978434048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
}
"""
# Instructions that start no kernel.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"),
    *("after-all", "copy-done", "async-done", "partition-id", "replica-id", "call"),
}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*?[\]})] ([a-z][a-z0-9-]*)\(")


def device(topology: str) -> Any:
    """Describe one device of a topology."""
    if topology == "h100":
        options = {"topology": "1x1x1", "target_config": _H100}
        return topologies.get_topology_desc("1x1x1", platform="cuda", **options).devices[0]
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return the five programs by name, each a function with its arguments."""
    wide, few = jax.ShapeDtypeStruct((8192, 100), jnp.float32), (2000, 10)
    labels = jax.ShapeDtypeStruct((8192,), jnp.int32)
    some, of_some = jnp.zeros(few), jnp.zeros(few[0], jnp.int32)
    loop = OurLoop("resnet8", "focal", 128, 1)
    return {
        "focal and gradient": (
            jax.value_and_grad(lambda z, y: losses.focal(z, y).mean()),
            (wide, labels),
        ),
        "ece": (lambda z, y: metrics.ece(z, y), (wide, labels)),
        "ece of 100 resamples": (
            lambda z, y, counts: jax.vmap(lambda weights: metrics.ece(z, y, weights))(counts),
            (some, of_some, jnp.ones((100, few[0]))),
        ),
        "temperature": (calibrators.temperature.fit, (some, of_some)),
        "step of ResNet-8": (loop.step, (loop.state, loop.batch)),
    }


def counted(text: str) -> dict[str, int]:
    """Count the kernels of a compiled program, and those of them that copy.

    Args:
      text: the optimized program in the compiler's own words.
    """
    # The computation inside a fusion or a reduction starts no kernel of its own.
    inner = set(re.findall(r"(?:calls|to_apply)=%?([\w.-]+)", text))
    kinds: Counter[str] = Counter()
    skipped = False
    for line in text.splitlines():
        if head := re.match(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
            skipped = head[1] in inner
        elif not skipped and (found := _INSTRUCTION.match(line)):
            kinds[found[1]] += 1
    copies = kinds["copy"] + kinds["copy-start"]
    return {"kernels": sum(n for kind, n in kinds.items() if kind not in _FREE), "copies": copies}


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...], on: Any) -> Any:
    """Compile a function for a device that is not here."""
    sharding = jax.sharding.SingleDeviceSharding(on)
    shapes = jax.tree.map(
        lambda of: jax.ShapeDtypeStruct(of.shape, of.dtype, sharding=sharding), arguments
    )
    backend = "tpu" if on.platform == "tpu" else "gpu"
    with mock.patch.object(jax, "default_backend", return_value=backend):
        return jax.jit(function).lower(*shapes).compile()


def main() -> int:
    """Compile the programs and print a row for each."""
    on = device(_TOPOLOGY.value)
    rows = []
    for name, (function, arguments) in programs().items():
        program = compiled(function, arguments, on)
        seconds = (program.cost_analysis() or {}).get("optimal_seconds", float("nan"))
        row = {"program": name, **counted(program.as_text())}
        row["MB"] = round(program.memory_analysis().temp_size_in_bytes / 1e6, 2)
        row["microseconds"] = round(1e6 * seconds, 1) if seconds > 0 else float("nan")
        rows.append(row)
    timing.report(rows)
    return 0


if __name__ == "__main__":
    cli.run(main)
