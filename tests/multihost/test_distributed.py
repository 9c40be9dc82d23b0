"""Processes that connect, synchronise and end together, here as threads with separate sockets."""

import contextlib
import json
import os
import socket
import threading
import time
from types import SimpleNamespace

import jax
import pytest
from time_limits import FAR_SECONDS

from bertfam import cli
from bertfam.errors import UserError
from bertfam.multihost import rendezvous, startup
from bertfam.multihost.exit_status import LOST, ExitStatusLinks
from bertfam.multihost.processes import Processes, ProcessExited
from bertfam.multihost.rendezvous import Meeting, meet

TOKEN = "the secret of a run"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Wait as long as it takes for what does come: a busy machine may stand still for a minute."""
    for name in ("rendezvous._HELLO", "rendezvous._SILENCE", "processes._STATUS_SECONDS"):
        monkeypatch.setattr(f"bertfam.multihost.{name}", FAR_SECONDS)


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def run_concurrently(*functions):
    """Run functions at the same time and return the result or exception of each."""
    results = [None] * len(functions)

    def run(index, function):
        try:
            results[index] = function()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FAR_SECONDS)
        assert not thread.is_alive()
    return results


def connect(port, index, count, seconds=FAR_SECONDS, origin=""):
    return lambda: meet(Meeting("localhost", port, count, TOKEN, seconds, origin), index)


@pytest.fixture
def run_processes():
    """A function run_processes(count, work) that returns the results of work(processes) in `count` threads."""

    def run(count, work):
        port = free_port()

        def run_one(index):
            links, status_links = (connect(port, index, count)() for _ in range(2))
            return work(Processes(index, links, exit_status=ExitStatusLinks(status_links)))

        return run_concurrently(*(lambda index=index: run_one(index) for index in range(count)))

    return run


def test_gather_returns_the_values_of_all_processes(run_processes):
    def talk(processes):
        return [processes.gather("first", processes.index * 10), processes.gather("second", {"i": processes.index})]

    assert run_processes(4, talk) == [[[0, 10, 20, 30], [{"i": index} for index in range(4)]]] * 4


def test_missing_processes_are_reported(monkeypatch, capsys):
    port, greet = free_port(), rendezvous._Gathering._greet
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=time.sleep)
    monkeypatch.setattr(rendezvous, "time", clock)

    def move(seconds):
        clock.now += seconds

    with monkeypatch.context() as patch:
        # The time of process 0 is over once process 2 has connected.
        patch.setattr(rendezvous._Gathering, "_greet", lambda *arguments: (greet(*arguments), move(1.0)))
        reported, silent = run_concurrently(connect(port, 0, 4, 0.5), connect(port, 2, 4, 5.0))
    assert str(reported) == (
        f"processes 1, 3 of 4 did not connect to port {port} within 0.5 s: start them with the same --coordinator, or raise "
        "--initialization_timeout"
    )
    assert isinstance(silent, SystemExit) and silent.code == 2
    clock.sleep = move
    (alone,) = run_concurrently(connect(port, 1, 2, 0.5))
    assert str(alone) == (
        f"process 1 of 2 could not connect to process 0 at localhost:{port} within 0.5 s (Connection refused): start process 0 "
        "there with --process_index=0, or raise --initialization_timeout"
    )
    assert not capsys.readouterr().err
    monkeypatch.setattr(rendezvous, "_SILENCE", 0.1)
    monkeypatch.setattr(rendezvous, "wait", lambda sockets, seconds: move(seconds) or [])
    slurm = " (from SLURM job 7, SLURM_NTASKS=4)"
    (alone,) = run_concurrently(connect(port, 0, 4, 0.3, slurm))
    assert str(alone).startswith(f"processes 1 to 3 of 4{slurm} did not connect to port {port} within 0.3 s: ")
    assert str(alone).endswith("; --num_processes=1 trains in this process alone")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"bertfam: waiting up to 0.3 s for processes 1 to 3 of 4{slurm} to connect to port {port}"


def test_another_service_at_the_port_is_considered():
    with socket.create_server(("localhost", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        port = server.getsockname()[1]
        _, error = run_concurrently(answer, connect(port, 1, 2))
    assert isinstance(error, UserError)
    assert f"localhost:{port} did not answer" in str(error) and "--coordinator if another program is at that one" in str(error)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([(1, 3), (1, 3)], "two processes were started with --process_index=1; number them from 0 to 2"),
        ([(1, 2)], "process 1 was started with --num_processes=2, process 0 with --num_processes=3"),
    ],
)
def test_conflicting_flags_of_processes_are_refused(others, message):
    port = free_port()
    reported, *silent = run_concurrently(connect(port, 0, 3), *(connect(port, *other) for other in others))
    assert isinstance(reported, UserError) and str(reported) == message
    assert all(isinstance(error, SystemExit) and error.code == 2 for error in silent)


def test_command_line_reports_missing_processes_and_writes_nothing(tmp_path, capsys):
    port = free_port()
    words = [f"--coordinator=localhost:{port}", "--num_processes=3", "--process_index=0", "--initialization_timeout=0.5"]
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}", *words]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"bertfam: error: processes 1, 2 of 3 did not connect to port {port} within 0.5 s: start them ")
    assert output.out == "" and output.err.count("\n") == 1 and not list(tmp_path.iterdir())


def open_connection(port, seconds=FAR_SECONDS):
    """Connect to process 0 once it listens; return the connection and its challenge."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection(("localhost", port))
            break
        except OSError:  # process 0 does not listen yet
            assert time.monotonic() < deadline
            time.sleep(0.05)
    return connection, rendezvous.Link(connection).receive(FAR_SECONDS)["challenge"]


def greeting(challenge, token=TOKEN, **changes):
    hello = {"versions": rendezvous._versions(), "index": 1, "count": 3, "challenge": "own"} | changes
    proof = Meeting("localhost", 1, 3, token, 1).proof(challenge, *hello.values())
    return json.dumps(hello | {"proof": proof}).encode() + b"\n"


def test_other_versions_are_refused():
    port = free_port()

    def connect_with_older_version():
        connection, challenge = open_connection(port)
        connection.sendall(greeting(challenge, versions="bertfam 0.0 and jax 0.1"))
        return rendezvous.Link(connection).receive(FAR_SECONDS)

    error, answer = run_concurrently(connect(port, 0, 3), connect_with_older_version)
    assert str(error) == (
        f"process 1 has bertfam 0.0 and jax 0.1 and process 0 {rendezvous._versions()}; install the same everywhere"
    )
    assert answer["refused"] == str(error)


def test_two_threads_gather_at_the_same_time(run_processes):
    """Use separate links, so that one thread can save while the other trains."""
    port = free_port()

    def run(index):
        processes = Processes(index, *(meet(Meeting("localhost", port, 3, TOKEN, FAR_SECONDS), index) for _ in range(2)))
        assert processes.others is not processes and processes.others.index == index

        def talk(group, name):
            return lambda: [group.gather(name, [name, index, number]) for number in range(50)]

        return run_concurrently(talk(processes, "training"), talk(processes.others, "saving"))

    for training, saving in run_concurrently(*(lambda index=index: run(index) for index in range(3))):
        assert training == [[["training", index, number] for index in range(3)] for number in range(50)]
        assert saving == [[["saving", index, number] for index in range(3)] for number in range(50)]


def connect_with_status_links(port, index, count):
    """Return the processes as seen by process `index`, and all of its links, which the caller closes."""
    links, other_links, status_links = (meet(Meeting("localhost", port, count, TOKEN, FAR_SECONDS), index) for _ in range(3))
    return Processes(index, links, other_links, ExitStatusLinks(status_links)), [*links, *other_links, *status_links]


def exit_after(processes, links, reason):
    """Exit as a process does whose peer exited, and return the reason."""
    processes.leave(reason.code)
    for link in links:
        link.close()
    return reason


@pytest.mark.parametrize(("sent_status", "status"), [(None, LOST), (1, 1), (2, 2), (75, 75), (0, 1)])
@pytest.mark.parametrize("detected_by", ["a collective", "what is gathered"])
def test_processes_end_with_the_status_of_the_one_that_exited(sent_status, status, detected_by):
    """A killed process has sent no status; a finished one is a fault if others have not finished."""
    port, collective_error = free_port(), jax.errors.JaxRuntimeError("connection reset")

    def run(index):
        processes, links = connect_with_status_links(port, index, 3)
        if index == 1:
            if sent_status is not None:
                processes.leave(sent_status)
            for link in links:
                link.close()
            return None
        if detected_by == "a collective":
            return exit_after(processes, links, processes.explain(collective_error))
        with pytest.raises(ProcessExited) as raised:
            processes.gather("a training step", None)
        return exit_after(processes, links, raised.value)

    first, _, third = run_concurrently(*(lambda index=index: run(index) for index in range(3)))
    assert first.line == "bertfam: error: process 1 exited while the others waited for a training step; see its log"
    assert (first.code, third.code, third.line) == (status, status, "")  # process 0 has reported it


@pytest.mark.parametrize(
    ("sent_status", "status", "line"),
    [(None, LOST, "bertfam: error: process 0 exited while the others waited for a step; see its log"), (1, 1, ""), (2, 2, "")],
)
def test_exit_of_process_0_ends_the_others(sent_status, status, line):
    """It is reported where process 0 has sent no status, and so no error."""
    port = free_port()

    def run(index):
        processes, links = connect_with_status_links(port, index, 2)
        if index == 0:
            if sent_status is not None:
                processes.leave(sent_status)
            for link in links:
                link.close()
            return None
        with pytest.raises(ProcessExited) as raised:
            processes.gather("a step", None)
        return exit_after(processes, links, raised.value)

    _, second = run_concurrently(*(lambda index=index: run(index) for index in range(2)))
    assert (second.code, second.line) == (status, line)


@pytest.mark.parametrize(("sent_status", "status"), [(None, LOST), (1, 1), (75, 75)])
@pytest.mark.parametrize("ended", [0, 1])
def test_process_that_does_nothing_ends_after_another_has(monkeypatch, capsys, ended, sent_status, status):
    """Its main thread may be stuck in a collective; JAX would abort it in the end."""
    left = []
    monkeypatch.setattr(startup, "_leave", lambda processes, status: left.append((processes.index, status)))
    monkeypatch.setattr(startup, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(startup, "_GRACE_SECONDS_FIRST", 0.01)
    port = free_port()

    def run(index):
        processes, links = connect_with_status_links(port, index, 2)
        if index != ended:
            startup._follow(processes, processes._exit_status, threading.Event())
        elif sent_status is not None:
            processes._exit_status.send(sent_status)
        for link in links:
            link.close()

    assert run_concurrently(lambda: run(0), lambda: run(1)) == [None, None]
    assert left == [(1 - ended, status)]
    line = f"bertfam: error: process {ended} exited before the end of the run; see its log\n"
    assert capsys.readouterr().err == ("" if sent_status and ended == 0 else line)  # process 0 has printed an error itself


def test_process_is_left_alone_after_the_end_of_the_run(monkeypatch):
    monkeypatch.setattr(startup, "_leave", None)
    port, over = free_port(), threading.Event()
    over.set()

    def run(index):
        processes, links = connect_with_status_links(port, index, 2)
        if index == 1:
            startup._follow(processes, processes._exit_status, over)
        for link in links:
            link.close()

    assert run_concurrently(lambda: run(0), lambda: run(1)) == [None, None]


def test_own_error_is_kept_while_others_save(monkeypatch):
    """Messages on the links for agreement are no sign that a process exited."""
    monkeypatch.setattr("bertfam.multihost.processes._STATUS_SECONDS", 0.2)
    port, own_error = free_port(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")
    opened = []  # until both have ended

    def run(index):
        processes, links = connect_with_status_links(port, index, 2)
        opened.extend(links)
        processes.others.offer("saving", [False, None])
        return processes.explain(own_error)

    assert run_concurrently(*(lambda index=index: run(index) for index in range(2))) == [own_error, own_error]
    assert Processes().explain(own_error) is own_error
    other_error = ValueError("a fault")
    assert Processes(0, [None]).explain(other_error) is other_error


def test_vanished_machine_is_detected_within_a_minute():
    port = free_port()
    for links in run_concurrently(connect(port, 0, 2), connect(port, 1, 2)):
        option = links[0].connection.getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle_seconds, interval_seconds, count = (
            option(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT")
        )
        assert idle_seconds + interval_seconds * count <= 60


def test_used_port_is_reported():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        (error,) = run_concurrently(connect(port, 0, 2))
    assert str(error) == f"process 0 cannot listen on port {port} (Address already in use); choose another port in --coordinator"


WRONG_TYPES = json.dumps({"versions": [], "index": [1], "count": {}, "challenge": 1, "proof": []}).encode()
STRANGERS = {
    "a browser": lambda challenge: b"GET / HTTP/1.1\r\n\r\n",
    "a number": lambda challenge: b"1\n",
    "values of other types": lambda challenge: WRONG_TYPES + b"\n",
    "a deep value": lambda challenge: b"[" * 900 + b"\n",
    "a long line": lambda challenge: b"x" * 10_000,
    "no text": lambda challenge: b"\xff\xfe\n",
    "another token": lambda challenge: greeting(challenge, "another"),
    "a proof that is no text": lambda challenge: (
        json.dumps(json.loads(greeting(challenge)) | {"proof": "\ud800"}).encode() + b"\n"
    ),
    "an old proof": lambda challenge: greeting("another challenge"),
}


def test_strangers_are_ignored_and_reported(capsys):
    """Also those that say nothing, those that close the connection, and one whose greeting has no end."""
    port = free_port()

    def connect_others():
        opened = [open_connection(port) for _ in range(3)]
        opened[1][0].sendall(b"[")
        for message in STRANGERS.values():
            connection, challenge = open_connection(port)
            connection.sendall(message(challenge))
            opened.append((connection, challenge))
        connection, challenge = open_connection(port)
        connection.sendall(greeting(challenge))  # a process that exits, and is started again
        connection.close()
        found = run_concurrently(connect(port, 1, 3), connect(port, 2, 3))
        for connection, _ in opened:
            connection.close()
        return found

    links, (first, second) = run_concurrently(connect(port, 0, 3), connect_others)
    assert [len(peers) for peers in (links, first, second)] == [2, 1, 1]
    lines = capsys.readouterr().err.splitlines()
    assert lines and all("ignored a connection from 127.0.0.1" in line and str(port) in line for line in lines)
    assert any("BERTFAM_RUN_TOKEN" in line for line in lines)


def test_strangers_do_not_prolong_the_wait(monkeypatch):
    monkeypatch.setattr(rendezvous, "_MOST_ARRIVALS", 2)
    port = free_port()

    def send_parts():
        connections = [open_connection(port, 10)[0]]  # unless process 0 has given up
        with contextlib.suppress(OSError):  # until process 0 gives up
            while True:
                connections.append(socket.create_connection(("localhost", port)))
                connections[-1].sendall(b"[")
                time.sleep(0.02)

    error, _ = run_concurrently(connect(port, 0, 2, 1.0), send_parts)
    assert "process 1 of 2 did not connect" in str(error)


@pytest.mark.parametrize(
    ("answer", "pause", "seconds", "message"),
    [
        (b'{"refused": "leave", "proof": "0"}\n', 0, FAR_SECONDS, "does not have the token of this run"),
        (b'{"proof": "\\ud800"}\n', 0, FAR_SECONDS, "does not have the token of this run"),
        (b" " * (1 << 17), 0, FAR_SECONDS, "did not answer process 1 (the value is too long)"),
        (b" ", 0.01, 0.3, "did not answer process 1 (timed out)"),
    ],
)
def test_process_0_without_the_token_is_not_joined(monkeypatch, answer, pause, seconds, message):
    """Also one whose answer has no end."""
    monkeypatch.setattr(rendezvous, "_HELLO", seconds)
    with socket.create_server(("localhost", 0)) as server:

        def answer_without_token():
            link = rendezvous.Link(server.accept()[0])
            link.send({"challenge": "0"})
            link.receive(FAR_SECONDS)
            with contextlib.suppress(OSError):  # until process 1 gives up
                while True:
                    link.connection.sendall(answer)
                    time.sleep(pause)

        error, _ = run_concurrently(connect(server.getsockname()[1], 1, 2, seconds), answer_without_token)
    assert isinstance(error, UserError) and message in str(error)


def test_the_token_may_be_any_bytes():
    one, other = (Meeting("localhost", 1, 2, os.fsdecode(token), 1) for token in (b"\xff", b"\xfe"))
    assert one.is_proof(one.proof("a"), "a") and not other.is_proof(one.proof("a"), "a")


def test_process_0_listens_on_the_address_of_the_coordinator_only():
    assert rendezvous.bind_address("localhost") in ("127.0.0.1", "::1")
    assert rendezvous.bind_address("127.0.0.2") == "127.0.0.2"
    # An address of another machine, a documentation address; a name that does not exist
    assert rendezvous.bind_address("192.0.2.1") is None and rendezvous.bind_address("no-such-host.invalid") is None
    with rendezvous._listen("127.0.0.2", free_port()) as listener:
        assert listener.getsockname()[0] == "127.0.0.2"


def test_own_name_that_resolves_to_a_loopback_address_listens_everywhere(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    assert rendezvous.bind_address("node7") is None


def test_user_error_ends_all_processes_and_is_reported_by_process_0(run_processes):
    def fail_on(indices, error):
        def work(processes):
            with processes.on_all("the work"):
                if processes.index in indices:
                    raise error
            return "went on"

        return work

    first, second, third = run_processes(3, fail_on({1}, UserError("no such file")))
    assert isinstance(first, UserError) and str(first) == "process 1: no such file"
    assert [(type(error), error.code) for error in (second, third)] == [(SystemExit, 2)] * 2
    first, *others = run_processes(3, fail_on({0, 1, 2}, UserError("no such file")))
    assert isinstance(first, UserError) and str(first) == "no such file"
    assert [(type(error), error.code) for error in others] == [(SystemExit, 2)] * 2
    first, second, third = run_processes(3, fail_on({2}, ValueError("a fault")))
    assert first.code == "bertfam: error: process 2 failed in the work: ValueError: a fault; see its log"
    assert second.code == 1 and isinstance(third, ValueError)  # its own process prints the traceback
    assert run_processes(3, fail_on({}, None)) == ["went on"] * 3


def test_work_on_the_first_process_finishes_before_the_others_continue(run_processes):
    finished = []

    def work(processes):
        processes.on_first("slow work", lambda: (time.sleep(0.3), finished.append(processes.index)))
        return list(finished)

    assert run_processes(3, work) == [[0]] * 3

    def fail(processes):
        def exit_with_2():
            raise SystemExit(2)  # which has reported the reason

        processes.on_first("slow work", exit_with_2)

    assert [error.code for error in run_processes(2, fail)] == [2, 2]


def test_different_configurations_are_refused(run_processes):
    def check(processes):
        processes.check_same("configuration", ["A = 1", f"B = {processes.index // 2}"])

    reported, *others = run_processes(3, check)
    assert str(reported) == (
        "process 2 has a different configuration from process 0: B = 1 there, B = 0 on process 0; give all processes the same "
        "flags and folders"
    )
    assert [error.code for error in others] == [2, 2]


def test_exited_process_does_not_block_the_others(run_processes):
    def leave(processes):
        try:
            if processes.index != 1:
                processes.gather("the end", 0)
        finally:  # as when a process exits
            for link in (*processes._links, *processes._exit_status._links):
                link.close()

    first, _, third = run_processes(3, leave)
    ending = "exited while the others waited for the end; see its log"
    assert (first.code, first.line) == (LOST, f"bertfam: error: process 1 {ending}")
    assert (third.code, third.line) == (LOST, f"bertfam: error: process 0 {ending}")


def test_message_names_the_machine_if_there_are_several(run_processes):
    def fail(processes):
        processes.hosts = ["a", "b", "b"]
        with processes.on_all("the work"):
            if processes.index == 2:
                raise ValueError("a fault")

    first, *_ = run_processes(3, fail)
    assert first.code == "bertfam: error: process 2 on b failed in the work: ValueError: a fault; see its log"


def test_single_process_needs_no_communication():
    processes = Processes()
    assert processes.first and processes.gather("anything", {"a": 1}) == [{"a": 1}]
    with pytest.raises(ZeroDivisionError), processes.on_all("anything"):
        print(1 / 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--num_processes=2",
            "--coordinator and --process_index missing: a run of several processes requires all of --coordinator, "
            "--num_processes, --process_index",
        ),
        (
            "--coordinator=here --num_processes=2 --process_index=0",
            "--coordinator=here is not an address; write HOST:PORT, such as 10.0.0.1:8476",
        ),
        (
            "--coordinator=http://here:1 --num_processes=2 --process_index=0",
            "--coordinator=http://here:1 is not an address; write HOST:PORT, such as 10.0.0.1:8476",
        ),
        (
            "--coordinator=here:\N{SUPERSCRIPT TWO} --num_processes=2 --process_index=0",
            "--coordinator=here:\N{SUPERSCRIPT TWO} is not an address; write HOST:PORT, such as 10.0.0.1:8476",
        ),
        (
            "--coordinator=here:1 --num_processes=2 --process_index=2",
            "--process_index=2 is out of range; the processes are numbered 0 to 1",
        ),
        ("--coordinator=here:1 --num_processes=0 --process_index=0", "--num_processes=0 must be at least 1 and below 2^16"),
        (
            "--coordinator=here:1 --num_processes=1 --process_index=0 --initialization_timeout=0",
            "--initialization_timeout=0 must be above 0",
        ),
    ],
)
def test_incomplete_and_bad_flags_are_refused(words, message, tmp_path, capsys):
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}", *words.split()]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"bertfam: error: {message}\n")
    assert not list(tmp_path.iterdir())
