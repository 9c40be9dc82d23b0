"""Process index and count from the launcher: SLURM, GKE, a Cloud TPU VM or an indexed Kubernetes Job.

The detection of `jax.distributed.initialize` (jax 0.10.2) was considered. It runs inside the call, where a missing process can no
longer be named, and each request to the metadata server may take 60 seconds. Here each environment is a function of the
variables and, on a TPU only, of the metadata.
"""

import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bertfam.errors import UserError

_PORT = 8482  # of the coordinator; like JAX's own choice on TPUs, it collides with no port of the TPU runtime
_SLURM_PORTS = range(61440, 65536)  # above Linux's default range of ephemeral ports
# Variables of launchers whose processes do not find each other here: those that they set, and the one of the number of processes.
_OTHER_LAUNCHERS = {
    "torchrun (or accelerate, deepspeed)": ("LOCAL_RANK", "RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
}
_GOOGLE = "0x1ae0"  # vendor of TPU chips on the PCI bus
_PATIENCE, _TRIES = 2.0, 3  # seconds to wait for the metadata server; number of attempts

Variables = Mapping[str, str]
Attribute = Callable[[str], str | None]  # name -> value on the metadata server; None if it has no such name


@dataclass(frozen=True)
class Membership:
    """Index of a process in its run and where the run meets; a value of None is unknown.

    Attributes:
      source: description of where the values come from.
      coordinator: HOST:PORT of process 0.
      count: number of processes.
      index: index of this process, from 0.
    """

    source: str
    coordinator: str | None = None
    count: int | None = None
    index: int | None = None


def membership(given: Membership, environ: Variables = os.environ, attribute: Attribute | None = None) -> Membership | None:
    """Return the membership of this process in a run of several processes, or None if it is alone.

    Args:
      given: the values of the flags, which take precedence; --num_processes=1 alone means a single process.
      environ: the environment variables of this process.
      attribute: reads an attribute of the metadata server; by default the server is queried if there is a TPU.

    Raises:
      UserError: if a value is missing, or two environments disagree.
    """
    if given.count == 1 and given.coordinator is None and not given.index:
        return None
    if None not in (given.coordinator, given.count, given.index):
        return given
    flagged = any(value is not None for value in (given.coordinator, given.count, given.index))
    if attribute is None and _on_tpu(environ):
        attribute = _metadata(environ)
    detected = [place for place in (_slurm(environ), _tpu(environ, attribute)) if place and (flagged or place.count != 1)]
    if not detected and flagged and "JOB_COMPLETION_INDEX" in environ:
        # Without flags the index says nothing: Jobs whose pods each train their own model are indexed too.
        detected = [Membership("the Job's index", index=_number(environ, "JOB_COMPLETION_INDEX"))]
    if not detected and not flagged:
        _check_other_launchers(environ)
        return None
    if len({(place.count, place.index) for place in detected}) > 1:
        sources = ", ".join(f"{place.source} says process {place.index} of {place.count}" for place in detected)
        raise UserError(f"launchers disagree: {sources}; give --coordinator, --num_processes and --process_index")
    result = detected[0] if detected else given
    values = {name: getattr(given, name) for name in ("coordinator", "count", "index") if getattr(given, name) is not None}
    result = replace(result, source=f"{result.source} and flags" if values and detected else result.source, **values)
    flags = {"--coordinator": result.coordinator, "--num_processes": result.count, "--process_index": result.index}
    if missing := [flag for flag, value in flags.items() if value is None]:
        raise UserError(f"{' and '.join(missing)} missing: a run of several processes requires all of {', '.join(flags)}")
    return result


def _check_other_launchers(environ: Variables) -> None:
    """Raise UserError for one of several processes that would each train alone, in one folder."""
    for launcher, names in _OTHER_LAUNCHERS.items():
        values = [environ.get(name, "") for name in names]
        if all(value.isdecimal() for value in values) and int(values[-1]) > 1:
            raise UserError(
                f"{names[-1]}={values[-1]}: {launcher} has started {values[-1]} processes, which do not find each other: start "
                "them by launch/local.py, launch/slurm.py or srun, or give each --coordinator, --num_processes and "
                "--process_index; --num_processes=1 trains in this process alone"
            )


def _slurm(environ: Variables) -> Membership | None:
    """Return the membership of a task started by srun; None in a batch script."""
    if "SLURM_STEP_NODELIST" not in environ:
        return None
    names = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID")
    if missing := [name for name in names if name not in environ]:
        raise UserError(
            f"{' and '.join(missing)} not set in a SLURM step: start the command with srun, or give --num_processes=1"
        )
    job, count, index = (_number(environ, name) for name in names)
    step = environ.get("SLURM_STEP_ID", "")
    port = _SLURM_PORTS[(job + (int(step) if step.isdecimal() else 0)) % len(_SLURM_PORTS)]
    coordinator = f"{_first_node(environ['SLURM_STEP_NODELIST'])}:{port}"
    return Membership(f"SLURM job {job}, SLURM_NTASKS={count}", coordinator, count, index)


def _first_node(nodes: str) -> str:
    """Return the first node of a SLURM list: a[07-09,11]-ib,b -> a07-ib."""
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodes)
    if first is None:
        raise UserError(f"the variable SLURM_STEP_NODELIST is {nodes!r}, not a list of nodes; give --coordinator=HOST:PORT")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _tpu(environ: Variables, attribute: Attribute | None) -> Membership | None:
    """Return the membership of a host of TPU slices, from variables on GKE and from metadata on a TPU VM."""
    if not _may_use_tpu(environ):
        return None
    if named := environ.get("TPU_WORKER_HOSTNAMES"):
        hosts = named.split(",")
        if "TPU_WORKER_ID" in environ:
            return _slice_membership("GKE", hosts, _number(environ, "TPU_WORKER_ID"), environ)
        if len(hosts) > 1:
            raise UserError("TPU_WORKER_HOSTNAMES is set without TPU_WORKER_ID: give --process_index")
        return None  # `libtpu.quieten` sets the variable on machines without TPUs too
    worker, endpoints = (attribute(name) if attribute else None for name in ("agent-worker-number", "worker-network-endpoints"))
    if attribute is None or worker is None or not endpoints:
        return None
    # Each endpoint is either NAME or NAME:ID:ADDRESS.
    addresses = [host.split(":")[-1] for host in endpoints.split(",")]
    tpu_env = dict(re.findall(r"^\s*(\w+)\s*:\s*'?([^'\n]*)'?", attribute("tpu-env") or "", re.MULTILINE))
    return _slice_membership("the TPU VM's metadata", addresses, int(worker), tpu_env | dict(environ))


def _slice_membership(source: str, hosts: list[str], worker: int, environ: Variables) -> Membership:
    """Return the membership of a worker: hosts are numbered slice by slice."""
    slices = _number(environ, "MEGASCALE_NUM_SLICES") if environ.get("MEGASCALE_NUM_SLICES") else 1
    number = _number(environ, "MEGASCALE_SLICE_ID") if slices > 1 else 0
    first = environ.get("MEGASCALE_COORDINATOR_ADDRESS", "").partition(":")[0] if slices > 1 else hosts[0]
    if not first:
        raise UserError(
            f"MEGASCALE_NUM_SLICES={slices} is set without MEGASCALE_COORDINATOR_ADDRESS: give --coordinator=HOST:PORT"
        )
    return Membership(source, f"{first}:{_PORT}", slices * len(hosts), number * len(hosts) + worker)


def _number(environ: Variables, name: str) -> int:
    value = environ.get(name, "")
    if not value.isdecimal():
        raise UserError(f"the variable {name} is {value!r}, not an integer; give --coordinator, --num_processes, --process_index")
    return int(value)


def _may_use_tpu(environ: Variables) -> bool:
    return "tpu" in (environ.get("JAX_PLATFORMS") or "tpu")


def _on_tpu(environ: Variables, devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Return whether to query the metadata server; JAX sets TPU_SKIP_MDS_QUERY where it finds no chip."""
    if "TPU_SKIP_MDS_QUERY" in environ or not _may_use_tpu(environ):
        return False
    return any(path.read_text().strip() == _GOOGLE for path in devices.glob("*/vendor"))


def _metadata(environ: Variables) -> Attribute:
    host = environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def attribute(name: str) -> str | None:
        url = f"http://{host}/computeMetadata/v1/instance/attributes/{name}"
        for _ in range(_TRIES):
            try:
                with opener.open(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), timeout=_PATIENCE) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError:  # no such attribute
                break
            except OSError:  # no answer yet
                continue
        return None

    return attribute
