"""Processes that meet, agree and end together; here they are threads, each with its own sockets."""

import json
import socket
import threading
import time

import jax
import pytest

from bertfam import cli
from bertfam.errors import UserError
from bertfam.multihost import rendezvous
from bertfam.multihost.exit_status import LOST, ExitStatusLinks
from bertfam.multihost.processes import Processes, ProcessExited
from bertfam.multihost.rendezvous import meet


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def at_once(*functions):
    """What each gives or raises, all run at the same time."""
    found = [None] * len(functions)

    def run(index, function):
        try:
            found[index] = function()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return found


def coming(port, index, count, seconds=10.0):
    return lambda: meet("localhost", port, index, count, seconds)


@pytest.fixture
def together():
    """together(count, what) runs what(processes) on each of so many."""

    def run(count, what):
        port = free_port()

        def one(index):
            links, third = (coming(port, index, count)() for _ in range(2))
            return what(Processes(index, links, exit_status=ExitStatusLinks(third)))

        return at_once(*(lambda index=index: one(index) for index in range(count)))

    return run


def test_every_process_learns_of_every_other(together):
    def talk(processes):
        return [processes.gather("first", processes.index * 10), processes.gather("second", {"i": processes.index})]

    assert together(4, talk) == [[[0, 10, 20, 30], [{"i": index} for index in range(4)]]] * 4


def test_whoever_does_not_come_is_named():
    port = free_port()
    told, quiet = at_once(coming(port, 0, 4, 0.5), coming(port, 2, 4, 5.0))
    assert str(told) == (
        f"processes 1, 3 of 4 did not connect to port {port} within 0.5 s: start them with the same --coordinator, or raise "
        "--initialization_timeout"
    )
    assert isinstance(quiet, SystemExit) and quiet.code == 2
    (alone,) = at_once(coming(port, 1, 2, 0.5))
    assert str(alone) == (
        f"process 1 could not connect to process 0 at localhost:{port} within 0.5 s (Connection refused): start process 0 there "
        "with --process_index=0, or raise --initialization_timeout"
    )


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([(1, 3), (1, 3)], "two processes were started with --process_index=1; number them from 0 to 2"),
        ([(1, 2)], "process 1 was started with --num_processes=2, process 0 with --num_processes=3"),
    ],
)
def test_flags_that_do_not_fit_each_other(others, message):
    port = free_port()
    told, *quiet = at_once(coming(port, 0, 3), *(coming(port, *other) for other in others))
    assert isinstance(told, UserError) and str(told) == message
    assert all(isinstance(error, SystemExit) and error.code == 2 for error in quiet)


def test_the_command_line_names_who_is_missing_and_writes_nothing(tmp_path, capsys):
    port = free_port()
    words = [f"--coordinator=localhost:{port}", "--num_processes=3", "--process_index=0", "--initialization_timeout=0.5"]
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}", *words]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"bertfam: error: processes 1, 2 of 3 did not connect to port {port} within 0.5 s: start them ")
    assert output.out == "" and output.err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_another_version_is_refused():
    port = free_port()

    def older():
        end = time.monotonic() + 5
        while True:
            try:
                connection = socket.create_connection(("localhost", port))
                break
            except OSError:  # process 0 does not listen yet
                assert time.monotonic() < end
                time.sleep(0.05)
        connection.sendall(json.dumps({"versions": "bertfam 0.0 and jax 0.1", "index": 1, "count": 2}).encode() + b"\n")
        return rendezvous.Link(connection).receive(5)

    told, answer = at_once(coming(port, 0, 2), older)
    assert str(told) == (
        f"process 1 has bertfam 0.0 and jax 0.1 and process 0 {rendezvous._versions()}; install the same everywhere"
    )
    assert answer == {"refused": str(told)}


def test_two_threads_gather_at_the_same_time(together):
    """Over links of their own: one saves while the other trains."""
    port = free_port()

    def run(index):
        processes = Processes(index, *(meet("localhost", port, index, 3, 10) for _ in range(2)))
        assert processes.others is not processes and processes.others.index == index

        def talk(over, what):
            return lambda: [over.gather(what, [what, index, number]) for number in range(50)]

        return at_once(talk(processes, "training"), talk(processes.others, "saving"))

    for training, saving in at_once(*(lambda index=index: run(index) for index in range(3))):
        assert training == [[["training", index, number] for index in range(3)] for number in range(50)]
        assert saving == [[["saving", index, number] for index in range(3)] for number in range(50)]


def with_farewells(port, index, count):
    """Process `index`, and all of its links, which are closed at its end."""
    links, beside, third = (meet("localhost", port, index, count, 10) for _ in range(3))
    return Processes(index, links, beside, ExitStatusLinks(third)), [*links, *beside, *third]


def end(processes, links, gone):
    """As a process ends that others have left alone; returns why."""
    processes.leave(gone.code)
    for link in links:
        link.close()
    return gone


@pytest.mark.parametrize(("word", "status"), [(None, LOST), (1, 1), (2, 2), (75, 75), (0, 1)])
@pytest.mark.parametrize("found_by", ["a collective", "what is gathered"])
def test_those_that_one_leaves_alone_end_as_it_has(word, status, found_by):
    """A killed one has told nothing; to have finished is a fault where others have not."""
    port, broken = free_port(), jax.errors.JaxRuntimeError("connection reset")

    def run(index):
        processes, links = with_farewells(port, index, 3)
        if index == 1:
            if word is not None:
                processes.leave(word)
            for link in links:
                link.close()
            return None
        if found_by == "a collective":
            return end(processes, links, processes.explain(broken))
        with pytest.raises(ProcessExited) as raised:
            processes.gather("a training step", None)
        return end(processes, links, raised.value)

    first, _, third = at_once(*(lambda index=index: run(index) for index in range(3)))
    assert first.line == "bertfam: error: process 1 exited while the others waited for a training step; see its log"
    assert (first.code, third.code, third.line) == (status, status, "")  # process 0 has told


def test_process_0_is_gone_without_a_word():
    port = free_port()

    def run(index):
        processes, links = with_farewells(port, index, 2)
        if index == 0:
            for link in links:
                link.close()
            return None
        with pytest.raises(ProcessExited) as raised:
            processes.gather("a step", None)
        return raised.value

    _, second = at_once(*(lambda index=index: run(index) for index in range(2)))
    assert (second.code, second.line) == (
        LOST,
        "bertfam: error: process 0 exited while the others waited for a step; see its log",
    )


def test_an_error_while_others_save_is_no_others():
    """What comes over the links on which they agree is no sign that anyone is gone."""
    port, own = free_port(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    def run(index):
        processes, _ = with_farewells(port, index, 2)
        processes.others.offer("saving", [False, None])
        return processes.explain(own)

    assert at_once(*(lambda index=index: run(index) for index in range(2))) == [own, own]
    assert Processes().explain(own) is own
    other = ValueError("a fault")
    assert Processes(0, [None]).explain(other) is other


def test_a_machine_that_vanishes_is_noticed_within_a_minute():
    port = free_port()
    for links in at_once(coming(port, 0, 2), coming(port, 1, 2)):
        option = links[0].connection.getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, every, times = (option(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT"))
        assert idle + every * times <= 60


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        (told,) = at_once(coming(port, 0, 2))
    assert str(told) == f"process 0 cannot listen on port {port} (Address already in use); choose another port in --coordinator"


def test_strangers_and_those_that_went_away_do_not_count():
    port = free_port()
    gone = json.dumps({"versions": rendezvous._versions(), "index": 1, "count": 3}).encode()

    def others():
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"", gone + b"\n"):
            end = time.monotonic() + 5
            while True:
                try:
                    connection = socket.create_connection(("localhost", port))
                    break
                except OSError:  # process 0 does not listen yet
                    assert time.monotonic() < end
                    time.sleep(0.05)
            connection.sendall(words)
            connection.close()
        return at_once(coming(port, 1, 3), coming(port, 2, 3))

    links, (first, second) = at_once(coming(port, 0, 3), others)
    assert [len(found) for found in (links, first, second)] == [2, 1, 1]


def test_one_mistake_ends_all_and_is_told_by_process_0(together):
    def mistaken(who, error):
        def work(processes):
            with processes.on_all("the work"):
                if processes.index in who:
                    raise error
            return "went on"

        return work

    first, second, third = together(3, mistaken({1}, UserError("no such file")))
    assert isinstance(first, UserError) and str(first) == "process 1: no such file"
    assert [(type(error), error.code) for error in (second, third)] == [(SystemExit, 2)] * 2
    first, *others = together(3, mistaken({0, 1, 2}, UserError("no such file")))
    assert isinstance(first, UserError) and str(first) == "no such file"
    assert [(type(error), error.code) for error in others] == [(SystemExit, 2)] * 2
    first, second, third = together(3, mistaken({2}, ValueError("a fault")))
    assert first.code == "bertfam: error: process 2 failed in the work: ValueError: a fault; see its log"
    assert second.code == 1 and isinstance(third, ValueError)  # its traceback is where it happened
    assert together(3, mistaken({}, None)) == ["went on"] * 3


def test_what_the_first_does_for_all_is_done_before_the_others_go_on(together):
    done = []

    def work(processes):
        processes.on_first("slow work", lambda: (time.sleep(0.3), done.append(processes.index)))
        return list(done)

    assert together(3, work) == [[0]] * 3

    def refused(processes):
        def child():
            raise SystemExit(2)  # which has told why

        processes.on_first("slow work", child)

    assert [error.code for error in together(2, refused)] == [2, 2]


def test_different_configurations_are_refused(together):
    def check(processes):
        processes.check_same("configuration", ["A = 1", f"B = {processes.index // 2}"])

    told, *others = together(3, check)
    assert str(told) == (
        "process 2 has a different configuration from process 0: B = 1 there, B = 0 on process 0; give all processes the same "
        "flags and folders"
    )
    assert [error.code for error in others] == [2, 2]


def test_one_that_is_gone_does_not_keep_the_others_waiting(together):
    def leave(processes):
        try:
            if processes.index != 1:
                processes.gather("the end", 0)
        finally:  # as at the end of a process
            for link in (*processes._links, *processes._exit_status._links):
                link.close()

    first, _, third = together(3, leave)
    ending = "exited while the others waited for the end; see its log"
    assert (first.code, first.line) == (LOST, f"bertfam: error: process 1 {ending}")
    assert (third.code, third.line) == (LOST, f"bertfam: error: process 0 {ending}")


def test_a_line_names_the_machine_where_there_are_several(together):
    def fail(processes):
        processes.hosts = ["a", "b", "b"]
        with processes.on_all("the work"):
            if processes.index == 2:
                raise ValueError("a fault")

    first, *_ = together(3, fail)
    assert first.code == "bertfam: error: process 2 on b failed in the work: ValueError: a fault; see its log"


def test_one_process_asks_nobody():
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
def test_flags_that_do_not_go_together(words, message, tmp_path, capsys):
    assert cli.main(["pretrain", f"--model_dir={tmp_path / 'model'}", *words.split()]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"bertfam: error: {message}\n")
    assert not list(tmp_path.iterdir())
