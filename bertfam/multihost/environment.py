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

_PORT = 8482  # of the coordinator; as JAX's own choice on TPUs, it is none of the TPU runtime's
_SLURM_PORTS = range(61440, 65536)  # beyond those that Linux gives to whoever asks for any
_GOOGLE = "0x1ae0"  # vendor of TPU chips on the PCI bus
_PATIENCE, _TRIES = 2.0, 3  # seconds for an answer of the metadata server; how often it is asked

Variables = Mapping[str, str]
Attribute = Callable[[str], str | None]  # of the metadata server: the value of a name, None where it has none


@dataclass(frozen=True)
class Membership:
    """Place of a process in its run; None is unknown.

    Attributes:
      source: description of where the values come from.
      coordinator: HOST:PORT of process 0.
      count: of processes.
      index: this process, from 0.
    """

    source: str
    coordinator: str | None = None
    count: int | None = None
    index: int | None = None


def membership(given: Membership, environ: Variables = os.environ, attribute: Attribute | None = None) -> Membership | None:
    """Return the place of this process among several, or None if it is alone.

    Args:
      given: what flags say, which wins; --num_processes=1 is alone whatever else is true.
      environ: the variables of this process.
      attribute: of the metadata server; by default it is asked where there is a TPU.

    Raises:
      UserError: something is missing, or two environments say different things.
    """
    if given.count == 1 and given.coordinator is None and not given.index:
        return None
    if None not in (given.coordinator, given.count, given.index):
        return given
    flagged = any(value is not None for value in (given.coordinator, given.count, given.index))
    if attribute is None and _on_tpu(environ):
        attribute = _metadata(environ)
    told = [found for found in (_slurm(environ), _tpu(environ, attribute)) if found and (flagged or found.count != 1)]
    if not told and flagged and "JOB_COMPLETION_INDEX" in environ:
        # By itself it says nothing: jobs that train a model each are numbered too.
        told = [Membership("the Job's index", index=_number(environ, "JOB_COMPLETION_INDEX"))]
    if not told and not flagged:
        return None
    if len({(found.count, found.index) for found in told}) > 1:
        said = " and ".join(f"{found.source} that this is process {found.index} of {found.count}" for found in told)
        raise UserError(f"it is said by {said}; give --coordinator, --num_processes and --process_index")
    found = told[0] if told else given
    values = {name: getattr(given, name) for name in ("coordinator", "count", "index") if getattr(given, name) is not None}
    found = replace(found, source=f"{found.source} and flags" if values and told else found.source, **values)
    flags = {"--coordinator": found.coordinator, "--num_processes": found.count, "--process_index": found.index}
    if missing := [flag for flag, value in flags.items() if value is None]:
        raise UserError(f"{' and '.join(missing)} missing: several processes need all of {', '.join(flags)}")
    return found


def _slurm(environ: Variables) -> Membership | None:
    """Return the place of a task started by srun; a batch script has none."""
    if "SLURM_STEP_NODELIST" not in environ:
        return None
    names = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID")
    if missing := [name for name in names if name not in environ]:
        raise UserError(
            f"a step of SLURM without {' and '.join(missing)}: start this by srun, or give --num_processes=1 to train alone"
        )
    job, count, index = (_number(environ, name) for name in names)
    step = environ.get("SLURM_STEP_ID", "")
    port = _SLURM_PORTS[(job + (int(step) if step.isdecimal() else 0)) % len(_SLURM_PORTS)]
    return Membership(f"SLURM job {job}", f"{_first_node(environ['SLURM_STEP_NODELIST'])}:{port}", count, index)


def _first_node(nodes: str) -> str:
    """Return the first node of a SLURM list: a[07-09,11]-ib,b -> a07-ib."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _tpu(environ: Variables, attribute: Attribute | None) -> Membership | None:
    """Return the place of a host of one or more TPU slices: variables on GKE, metadata on a TPU VM."""
    if not _may_use_tpu(environ):
        return None
    if named := environ.get("TPU_WORKER_HOSTNAMES"):
        hosts = named.split(",")
        if "TPU_WORKER_ID" in environ:
            return _of_slices("GKE", hosts, _number(environ, "TPU_WORKER_ID"), environ)
        if len(hosts) > 1:
            raise UserError("TPU_WORKER_HOSTNAMES without TPU_WORKER_ID: which of the hosts is this? Give --process_index")
        return None  # a machine without TPUs may have the variable too, as `libtpu.quieten` leaves it
    worker, endpoints = (attribute(name) if attribute else None for name in ("agent-worker-number", "worker-network-endpoints"))
    if attribute is None or worker is None or not endpoints:
        return None
    # Either names, or NAME:ID:ADDRESS.
    addresses = [host.split(":")[-1] for host in endpoints.split(",")]
    more = dict(re.findall(r"^\s*(\w+)\s*:\s*'?([^'\n]*)'?", attribute("tpu-env") or "", re.MULTILINE))
    return _of_slices("the TPU VM's metadata", addresses, int(worker), more | dict(environ))


def _of_slices(source: str, hosts: list[str], worker: int, environ: Variables) -> Membership:
    """Number the hosts of slice 0 first, then those of slice 1, ..."""
    slices = _number(environ, "MEGASCALE_NUM_SLICES") if environ.get("MEGASCALE_NUM_SLICES") else 1
    number = _number(environ, "MEGASCALE_SLICE_ID") if slices > 1 else 0
    first = environ.get("MEGASCALE_COORDINATOR_ADDRESS", "").partition(":")[0] if slices > 1 else hosts[0]
    if not first:
        raise UserError(f"MEGASCALE_NUM_SLICES={slices} without MEGASCALE_COORDINATOR_ADDRESS: give --coordinator=HOST:PORT")
    return Membership(source, f"{first}:{_PORT}", slices * len(hosts), number * len(hosts) + worker)


def _number(environ: Variables, name: str) -> int:
    value = environ.get(name, "")
    if not value.isdecimal():
        raise UserError(
            f"the variable {name} is {value!r}, no whole number; give --coordinator, --num_processes, --process_index"
        )
    return int(value)


def _may_use_tpu(environ: Variables) -> bool:
    return "tpu" in (environ.get("JAX_PLATFORMS") or "tpu")


def _on_tpu(environ: Variables, devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Return whether to ask the metadata server; JAX sets the variable where it sees no chip."""
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
            except urllib.error.HTTPError:  # it has no such name
                break
            except OSError:  # it does not answer, or not yet
                continue
        return None

    return attribute
