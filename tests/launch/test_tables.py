"""Tables of the launchers: slices as in `bertfam plan`, and flags that the TPU compiler accepts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import FAR_SECONDS

from bertfam.planning.slices import parse

sys.path.insert(0, str(Path(__file__).parents[2] / "launch"))
import slices  # noqa: E402
import xla_flags  # noqa: E402

sys.path.pop(0)
TOPOLOGIES = {"v4": "v4:2x2x4", "v5e": "v5e:4x4", "v5p": "v5p:2x2x4", "v6e": "v6e:4x4"}
COMPILE = """
import json, sys
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
for topology, flags in json.loads(sys.argv[1]):
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    rows = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((256, 256), np.float32, sharding=rows)
    jax.jit(lambda x: (x @ x.T).sum(0)).lower(x).compile(compiler_options=flags)
    print("compiled", topology)
"""


def test_names_of_cloud_tpu_are_accepted():
    assert slices.slice_name("2xv5litepod-16") == slices.slice_name("2xv5e-16")


@pytest.mark.parametrize("kind", ["v5e", "v5p", "v6e"])
def test_slices_equal_those_of_plan(kind):
    sizes = [size for size in (2**power for power in range(14)) if size * slices.KINDS[kind].chips_counted <= 8192]
    compared = 0
    for size in sizes:
        try:
            launcher_slice = slices.slice_name(f"2x{kind}-{size}")
        except slices.argparse.ArgumentTypeError:
            continue
        planned_slice = parse(f"2x{kind}-{size}")
        assert (launcher_slice.topology, launcher_slice.count) == ("x".join(map(str, planned_slice.shape)), planned_slice.count)
        assert parse(f"2x{launcher_slice.accelerator_type}") == type(planned_slice)(
            f"2x{launcher_slice.accelerator_type}", planned_slice.kind, planned_slice.shape, 2
        )
        compared += 1
    assert compared >= 8


def test_every_kind_of_chip_has_flags():
    assert set(xla_flags.FLAGS) == {*slices.KINDS, "gpu"} and set(TOPOLOGIES) == set(slices.KINDS)
    assert xla_flags.environment("gpu", True).keys() == {"XLA_FLAGS"} and xla_flags.environment("v5e", False) == {}


def test_tpu_compiler_accepts_the_flags():
    pytest.importorskip("libtpu")
    flags = {kind: dict(flag[2:].split("=") for flag in xla_flags.FLAGS[kind]) for kind in TOPOLOGIES}
    topologies_and_flags = [(TOPOLOGIES[kind], flags[kind]) for kind in TOPOLOGIES]
    variables = {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    variables |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(topologies_and_flags)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=FAR_SECONDS,
    )
    assert process.stdout.splitlines() == [f"compiled {topology}" for topology in TOPOLOGIES.values()], process.stderr
