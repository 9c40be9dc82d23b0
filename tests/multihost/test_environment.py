"""Membership of a process among several, from the variables of launchers and from a metadata server of these tests."""

import http.server
import threading
import time

import pytest

from bertfam import cli
from bertfam.errors import UserError
from bertfam.multihost import environment
from bertfam.multihost.environment import Membership, membership
from bertfam.multihost.startup import own_gpu
from bertfam.sharding import libtpu

NOTHING = Membership("flags")
ALL = Membership("flags", "here:1", 2, 1)
SLURM = {
    "SLURM_JOB_ID": "4099",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[07-09,11]-ib,big1",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
GKE = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t-0.t,t-1.t"}
SLICES = {"MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_COORDINATOR_ADDRESS": "t-0-0.t:8080"}
JOB = {"JOB_COMPLETION_INDEX": "3"}
VM = {"agent-worker-number": "2", "worker-network-endpoints": "w-0:7:10.0.0.5,w-1:8:10.0.0.6,w-2:9:10.0.0.7"}
CASES = {
    "nothing": (NOTHING, {}, {}, None),
    "flags": (ALL, SLURM | GKE, {}, ALL),
    "SLURM": (NOTHING, SLURM, {}, Membership("SLURM job 4099, SLURM_NTASKS=8", "gpu07-ib:61445", 8, 5)),
    "SLURM, one task": (NOTHING, SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, {}, None),
    "SLURM, a batch script": (NOTHING, {name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_NTASKS")}, {}, None),
    "SLURM, alone all the same": (Membership("flags", count=1), SLURM, {}, None),
    "SLURM and a flag": (
        Membership("flags", "big1:7"),
        SLURM,
        {},
        Membership("SLURM job 4099, SLURM_NTASKS=8 and flags", "big1:7", 8, 5),
    ),
    "GKE": (NOTHING, GKE, {}, Membership("GKE", "t-0.t:8482", 2, 1)),
    "GKE, slices": (NOTHING, GKE | SLICES, {}, Membership("GKE", "t-0-0.t:8482", 6, 5)),
    "GKE, one host": (NOTHING, {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, {}, None),
    "no TPU, but its compiler": (NOTHING, libtpu.PLACEHOLDERS, {}, None),
    "GKE, on the CPU": (NOTHING, GKE | {"JAX_PLATFORMS": "cpu"}, {}, None),
    "TPU VM": (NOTHING, {}, VM, Membership("the TPU VM's metadata", "10.0.0.5:8482", 3, 2)),
    "TPU VM, host names": (
        NOTHING,
        {},
        VM | {"worker-network-endpoints": "w-0,w-1,w-2"},
        Membership("the TPU VM's metadata", "w-0:8482", 3, 2),
    ),
    "TPU VM, slices": (
        NOTHING,
        {},
        VM
        | {
            "tpu-env": "ACCELERATOR_TYPE: 'v4-24'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
            "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.2:8080'\n"
        },
        Membership("the TPU VM's metadata", "10.0.0.2:8482", 6, 5),
    ),
    "TPU VM, one host": (NOTHING, {}, {"agent-worker-number": "0", "worker-network-endpoints": "w-0"}, None),
    "a virtual machine without TPU": (NOTHING, {}, {}, None),
    "an indexed Job": (
        Membership("flags", "t-0.t:1", 4),
        JOB,
        {},
        Membership("the Job's index and flags", "t-0.t:1", 4, 3),
    ),
    "an indexed Job of single ones": (NOTHING, JOB, {}, None),
    "two that agree": (
        NOTHING,
        SLURM | {"SLURM_NTASKS": "2", "SLURM_PROCID": "1"} | GKE,
        {},
        Membership("SLURM job 4099, SLURM_NTASKS=2", "gpu07-ib:61445", 2, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_membership_of_every_environment(name):
    flags, environ, metadata, expected = CASES[name]
    assert membership(flags, environ, metadata.get if metadata else None) == expected


MISTAKES = {
    "two that do not agree": (
        NOTHING,
        SLURM | GKE,
        "launchers disagree: SLURM job 4099, SLURM_NTASKS=8 says process 5 of 8, GKE says process 1 of 2; give --coordinator, "
        "--num_processes and --process_index",
    ),
    "a step of SLURM that lacks something": (
        NOTHING,
        {"SLURM_STEP_NODELIST": "a", "SLURM_NTASKS": "2"},
        "SLURM_JOB_ID and SLURM_PROCID not set in a SLURM step: start the command with srun, or give --num_processes=1",
    ),
    "no number": (
        NOTHING,
        SLURM | {"SLURM_PROCID": "x"},
        "the variable SLURM_PROCID is 'x', not an integer; give --coordinator, --num_processes, --process_index",
    ),
    "hosts without the own": (
        NOTHING,
        {"TPU_WORKER_HOSTNAMES": "a,b"},
        "TPU_WORKER_HOSTNAMES is set without TPU_WORKER_ID: give --process_index",
    ),
    "slices without a coordinator": (
        NOTHING,
        GKE | {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "0"},
        "MEGASCALE_NUM_SLICES=2 is set without MEGASCALE_COORDINATOR_ADDRESS: give --coordinator=HOST:PORT",
    ),
    "a Job whose size nobody says": (
        Membership("flags", "a:1"),
        JOB,
        "--num_processes missing: a run of several processes requires all of --coordinator, --num_processes, --process_index",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_incomplete_and_conflicting_environments_are_reported(name):
    flags, environ, message = MISTAKES[name]
    with pytest.raises(UserError) as raised:
        membership(flags, environ)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b[1-2]", "a"), ("node[1-3]", "node1"), ("r[2,4]n[05-07],x", "r2n05"), ("gpu-a-[10,12-14]", "gpu-a-10")],
)
def test_first_node_of_a_node_list(nodes, first):
    assert environment._first_node(nodes) == first


@pytest.mark.parametrize("nodes", ["", ",a", "a[1-4", "a]", "a[[1]]"])
def test_a_damaged_node_list_is_named(nodes):
    with pytest.raises(UserError, match="SLURM_STEP_NODELIST is .*not a list of nodes; give --coordinator"):
        environment._first_node(nodes)


@pytest.fixture
def metadata_server(monkeypatch):
    """Address of a server for the attributes of an instance, the attributes, and the names that were requested."""
    attributes, requested = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            folder, _, name = self.path.rpartition("/")
            requested.append(name)
            is_instance_request = (
                folder == "/computeMetadata/v1/instance/attributes" and self.headers["Metadata-Flavor"] == "Google"
            )
            self.send_response(200 if is_instance_request and name in attributes else 404)
            self.end_headers()
            self.wfile.write(attributes.get(name, "not found").encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"localhost:{server.server_port}", attributes, requested
    server.shutdown()
    server.server_close()


def test_metadata_server_is_used_only_on_a_tpu(metadata_server, tmp_path, monkeypatch):
    address, attributes, requested = metadata_server
    environ = {"GCE_METADATA_HOST": address, "http_proxy": "http://localhost:1"}
    attributes.update(VM)
    monkeypatch.setattr(environment, "_on_tpu", lambda environ: False)
    assert membership(NOTHING, environ) is None and requested == []
    monkeypatch.setattr(environment, "_on_tpu", lambda environ: True)
    assert membership(NOTHING, environ) == Membership("the TPU VM's metadata", "10.0.0.5:8482", 3, 2)
    assert requested == ["agent-worker-number", "worker-network-endpoints", "tpu-env"]
    attributes.clear()
    assert membership(NOTHING, environ) is None


def test_silent_metadata_server_times_out(monkeypatch):
    monkeypatch.setattr(environment, "_PATIENCE", 0.1)
    with http.server.socketserver.TCPServer(("localhost", 0), None) as silent:
        start = time.monotonic()
        assert environment._metadata({"GCE_METADATA_HOST": f"localhost:{silent.server_address[1]}"})("tpu-env") is None
        assert time.monotonic() - start >= 0.3


def test_tpu_is_detected_by_its_vendor_id(tmp_path):
    card = tmp_path / "0000:00:04.0"
    card.mkdir()
    (card / "vendor").write_text("0x10de\n")
    assert not environment._on_tpu({}, tmp_path)
    (card / "vendor").write_text("0x1ae0\n")
    assert environment._on_tpu({}, tmp_path) and environment._on_tpu({"JAX_PLATFORMS": "tpu,cpu"}, tmp_path)
    assert not environment._on_tpu({"JAX_PLATFORMS": "cpu"}, tmp_path)
    assert not environment._on_tpu({"TPU_SKIP_MDS_QUERY": "1"}, tmp_path)


@pytest.mark.parametrize(
    ("hosts", "index", "environ", "gpu"),
    [
        ("ab", 1, {}, None),  # alone on its host, so it uses all GPUs
        ("aabb", 3, {}, 1),
        ("aabb", 2, {"CUDA_VISIBLE_DEVICES": "0,1"}, 0),
        ("aabb", 3, {"CUDA_VISIBLE_DEVICES": "1"}, None),  # its own GPU, set by --gpus-per-task
        ("aabb", 3, {"JAX_LOCAL_DEVICE_IDS": "0,1"}, None),
    ],
)
def test_processes_on_one_host_use_one_gpu_each(hosts, index, environ, gpu, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert own_gpu(hosts, index) == gpu


def test_bad_values_are_reported_with_their_source(tmp_path, monkeypatch, capsys):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}", "--num_processes=4"]) == 2
    assert capsys.readouterr().err == (
        "bertfam: error: --process_index=5 (from SLURM job 4099, SLURM_NTASKS=8 and flags) is out of range; "
        "the processes are numbered 0 to 3\n"
    )
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}", "--initialization_timeout=0"]) == 2
    assert capsys.readouterr().err == "bertfam: error: --initialization_timeout=0 must be above 0\n"


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}, "torchrun"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
    ],
)
def test_processes_of_launchers_that_say_nothing_here_do_not_train_alone(variables, launcher):
    name, count = list(variables.items())[-1]
    with pytest.raises(UserError, match=f"{name}={count}: {launcher}.*--num_processes=1"):
        membership(NOTHING, variables)
    assert membership(Membership("flags", count=1), variables) is None
    assert membership(ALL, variables) == ALL
    assert membership(NOTHING, variables | {name: "1"}) is None
    assert membership(NOTHING, SLURM | variables).count == 8
