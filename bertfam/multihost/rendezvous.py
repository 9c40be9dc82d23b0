"""Rendezvous of the processes of a run over plain sockets, before JAX starts, so that a missing process can be named.

`jax.distributed.initialize` alone was considered. If a process is missing, it aborts the others with a stack dump and status 134
(jax 0.10.2), and does not name the missing one. So the processes first connect to the coordinator's port, where each proves that
it knows the run's token and sends its index to process 0. Process 0 then frees the port for JAX, and the connections remain for
messages outside of JAX: one JSON value per line.

The port may be reached by strangers. Process 0 listens on the coordinator's address only, answers a challenge with a keyed digest
(`multiprocessing.connection.deliver_challenge` was considered: it waits for an answer without a limit of time), ignores and
reports what is malformed, and reads all connections at once, so that nobody can hold it up.
"""

import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from multiprocessing.connection import wait
from typing import Any, NoReturn

from bertfam.errors import UserError, warn
from bertfam.version import __version__

_RETRY = 0.2  # seconds
_HELLO = 5.0  # seconds in which a connected process must send its greeting
_SILENCE = 5.0  # seconds after which a waiting process says so
_LONGEST_HELLO = 1000  # bytes
_LONGEST_ANSWER = 1 << 20  # bytes; it may name thousands of missing processes
_MOST_ARRIVALS = 256  # connections without a greeting yet, of which the oldest is closed for a new one
_MOST_REPORTED = 10  # lines about ignored connections
# A lost machine is detected after a minute, not after Linux's two hours.
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
}


def describe_processes(indices: Iterable[int]) -> str:
    """Describe processes, in ascending order: "process 1", "processes 1, 2", or "processes 1 to 3, 7"."""
    numbers = list(indices)
    runs = [[index for _, index in run] for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])]
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"process{'' if len(numbers) == 1 else 'es'} {', '.join(words)}"


class ConnectionLost(Exception):
    """Loss of the connection to another process."""


class Link:
    """Connection that carries JSON values, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        # Detect a lost machine before JAX's service does, which after 100 seconds kills all other processes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if option := getattr(socket, name, None):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self.connection, self._received = connection, b""

    def send(self, value: Any) -> None:
        """Send a value; raises ConnectionLost if the other process is gone."""
        try:
            self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, seconds: float | None = None, *, at_most: int | None = None) -> Any:
        """Receive the next value.

        Args:
          seconds: how long to wait; None: forever.
          at_most: largest size of a value in bytes; None, for processes that have proved to know the token: unlimited.

        Raises:
          TimeoutError: if no whole value arrived in time, even if bytes still arrive; a partly received one is kept.
          ConnectionLost: if the other process is gone.
          ValueError: if the value is not JSON, or too long.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._received:
            self.connection.settimeout(None if end is None else max(end - time.monotonic(), 1e-3))
            try:
                received = self.connection.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            finally:
                self.connection.settimeout(None)
            if not received:
                raise ConnectionLost("the connection was closed")
            self._received += received
            if at_most is not None and len(self._received) > at_most:
                raise ValueError("the value is too long")
            if end is not None and b"\n" not in received and time.monotonic() >= end:
                raise TimeoutError("timed out")
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    @property
    def has_received(self) -> bool:
        """True if a value was already received together with the previous one."""
        return b"\n" in self._received

    def is_gone(self) -> bool:
        """Return whether the other process is gone; valid only while no value is expected from it."""
        return bool(wait([self.connection], 0))

    def shut(self) -> None:
        """Shut the connection down; this ends receiving at the other end and in any thread of this process."""
        with contextlib.suppress(OSError):  # the other end closed it
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which no other thread of this process may be using."""
        self.connection.close()


@dataclass(frozen=True)
class Meeting:
    """Place where the processes of a run meet.

    Attributes:
      host: host of process 0.
      port: port that process 0 listens on; it is free again afterwards.
      count: number of processes.
      token: secret that all processes of the run know; any bytes, as `os.environ` decodes them.
      seconds: how long a process waits for the others.
      origin: where the number of processes comes from, " (from SLURM job 7, SLURM_NTASKS=4)"; "" if flags say it.
    """

    host: str
    port: int
    count: int
    token: str
    seconds: float
    origin: str = ""

    @property
    def advice(self) -> str:
        """End of the message about missing processes that no flag names; "" if flags name them."""
        return "; --num_processes=1 trains in this process alone" if self.origin else ""

    def proof(self, *parts: Any) -> str:
        """Return the digest by which a process shows that it knows the token."""
        return hmac.new(os.fsencode(self.token), json.dumps(parts).encode(), "sha256").hexdigest()

    def is_proof(self, proof: Any, *parts: Any) -> bool:
        """Return whether `proof` is the digest of these parts."""
        return isinstance(proof, str) and proof.isascii() and hmac.compare_digest(proof, self.proof(*parts))


def meet(meeting: Meeting, index: int) -> list[Link]:
    """Wait until all processes have connected.

    Args:
      meeting: where they meet.
      index: index of this process, from 0.

    Returns:
      On process 0 the links to processes 1, 2, ...; on another process its link to process 0.

    Raises:
      UserError: on process 0, if a process did not connect or its flags do not match; on another, if process 0 is unreachable.
      SystemExit: on the other processes, if process 0 raises UserError.
    """
    return _Gathering(meeting).run() if index == 0 else [_join(meeting, index)]


@dataclass
class _Arrival:
    """Connection that has not sent its greeting yet, the challenge that it was sent, and the time until which it may."""

    link: Link
    address: str
    challenge: str
    end: float


class _Gathering:
    """Process 0 while it waits for the others."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._connected: dict[int, Link] = {}
        self._greetings: dict[int, str] = {}
        self._arrivals: list[_Arrival] = []
        self._reported: set[str] = set()

    def run(self) -> list[Link]:
        """Wait for the others; return the links to processes 1, 2, ..."""
        meeting = self._meeting
        end = time.monotonic() + meeting.seconds
        reminder = time.monotonic() + _SILENCE
        with _listen(meeting.host, meeting.port) as listener:
            listener.setblocking(False)
            while True:
                # A process that disconnected, perhaps to be restarted, does not count.
                self._connected = {index: link for index, link in self._connected.items() if not link.is_gone()}
                if len(self._connected) == meeting.count - 1:
                    break
                now = time.monotonic()
                if now >= end:
                    self._refuse_missing()
                if now >= reminder:
                    reminder = end
                    line = f"waiting up to {meeting.seconds:g} s for {self._missing()} to connect to port {meeting.port}"
                    print(f"bertfam: {line}", file=sys.stderr, flush=True)
                sockets = [listener, *(arrival.link.connection for arrival in self._arrivals)]
                ready = wait(sockets, min([end, reminder, *(arrival.end for arrival in self._arrivals)]) - now)
                self._read(ready)
                if listener in ready:
                    self._accept(listener)
        for arrival in self._arrivals:
            arrival.link.close()
        links = [self._connected[index] for index in range(1, meeting.count)]
        for index, link in enumerate(links, 1):
            with contextlib.suppress(ConnectionLost):  # the next receive reports it
                link.send({"proof": meeting.proof("answer", self._greetings[index])})
        return links

    def _refuse_missing(self) -> NoReturn:
        meeting = self._meeting
        self._refuse(
            f"{self._missing()} did not connect to port {meeting.port} within {meeting.seconds:g} s: start them with the same "
            f"--coordinator, or raise --initialization_timeout{meeting.advice}"
        )

    def _missing(self) -> str:
        """Describe the processes that have not connected."""
        missing = [index for index in range(1, self._meeting.count) if index not in self._connected]
        return f"{describe_processes(missing)} of {self._meeting.count}{self._meeting.origin}"

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except OSError:  # it was closed before it was accepted
            return
        if len(self._arrivals) == _MOST_ARRIVALS:
            self._ignore(self._arrivals[0], "too many connections at once")
        arrival = _Arrival(Link(connection), str(address[0]), secrets.token_hex(16), time.monotonic() + _HELLO)
        self._arrivals.append(arrival)
        try:
            arrival.link.send({"challenge": arrival.challenge})
        except ConnectionLost as error:
            self._ignore(arrival, str(error))

    def _read(self, ready: Sequence[Any]) -> None:
        """Read the greetings of the connections that have sent something; close those whose time is over."""
        for arrival in list(self._arrivals):
            if arrival.link.connection not in ready:
                if time.monotonic() >= arrival.end:
                    self._ignore(arrival, "no greeting")
                continue
            try:
                hello = arrival.link.receive(1e-3, at_most=_LONGEST_HELLO)
            except TimeoutError:  # a part of it
                if time.monotonic() >= arrival.end:
                    self._ignore(arrival, "no greeting")
            except (ConnectionLost, ValueError, RecursionError):
                self._ignore(arrival, "no greeting of a bertfam process")
            else:
                self._greet(arrival, hello)

    def _greet(self, arrival: _Arrival, hello: Any) -> None:
        meeting = self._meeting
        if not (isinstance(hello, dict) and hello.keys() == {"versions", "index", "count", "challenge", "proof"}):
            self._ignore(arrival, "no greeting of a bertfam process")
            return
        parts = [hello[name] for name in ("versions", "index", "count", "challenge")]
        if not meeting.is_proof(hello["proof"], arrival.challenge, *parts):
            self._ignore(
                arrival, "another token: all processes of a run need the same BERTFAM_RUN_TOKEN, or the same --model_dir"
            )
            return
        index = hello["index"]
        if mistake := self._mistake(hello):
            self._refuse(mistake, {index: (arrival.link, hello["challenge"])})
        self._arrivals.remove(arrival)
        self._connected[index], self._greetings[index] = arrival.link, hello["challenge"]

    def _mistake(self, hello: dict[str, Any]) -> str | None:
        """Return why the greeting of a process that knows the token does not match process 0; None if it matches."""
        index, count = hello["index"], self._meeting.count
        if hello["versions"] != _versions():
            return f"process {index} has {hello['versions']} and process 0 {_versions()}; install the same everywhere"
        if hello["count"] != count:
            return f"process {index} was started with --num_processes={hello['count']}, process 0 with --num_processes={count}"
        if index in self._connected and not self._connected[index].is_gone():
            return f"two processes were started with --process_index={index}; number them from 0 to {count - 1}"
        return None

    def _refuse(self, line: str, further: Mapping[int, tuple[Link, str]] = {}) -> NoReturn:  # noqa: B006 - not changed
        """Send the line to all connected processes, and to `further` ones, and raise it."""
        connected = [(link, self._greetings[index]) for index, link in self._connected.items()]
        for link, challenge in [*connected, *further.values()]:
            with contextlib.suppress(ConnectionLost):
                link.send({"refused": line, "proof": self._meeting.proof("answer", challenge)})
        raise UserError(line)

    def _ignore(self, arrival: _Arrival, reason: str) -> None:
        """Close a connection, and report it once for each address and reason."""
        self._arrivals.remove(arrival)
        arrival.link.close()
        line = f"ignored a connection from {arrival.address} to port {self._meeting.port}: {reason}"
        if line not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(line)
            warn([line])


def bind_address(host: str) -> str | None:
    """Return the address of this machine that process 0 listens on; None: all of them.

    None where `host` does not resolve to an address of this machine, as behind a translated address, and where a name other than
    localhost resolves to a loopback address, as the own name does on Debian.
    """
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        is_loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        if is_loopback and host != "localhost" and host != address:
            return None
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return None
    return address


def _listen(host: str, port: int) -> socket.socket:
    address = bind_address(host)
    try:
        if address is not None:
            return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on port {port} ({os.strerror(error.errno or 0)}); choose another port in --coordinator"
        ) from error


def _versions() -> str:
    return f"bertfam {__version__} and jax {metadata.version('jax')}"


def _join(meeting: Meeting, index: int) -> Link:
    end = time.monotonic() + meeting.seconds
    where, reason, is_silent = f"{meeting.host}:{meeting.port}", "", True
    while (left := end - time.monotonic()) > 0:
        if is_silent and left < meeting.seconds - _SILENCE:
            is_silent = False
            line = f"process {index} of {meeting.count}{meeting.origin} waits for process 0 at {where}"
            print(f"bertfam: {line}, up to {meeting.seconds:g} s", file=sys.stderr, flush=True)
        try:
            connection = socket.create_connection((meeting.host, meeting.port), timeout=min(left, _SILENCE))
        except (OSError, UnicodeError) as error:  # process 0 does not listen yet, or its name does not resolve yet
            reason = getattr(error, "strerror", None) or str(error)
            time.sleep(_RETRY)
            continue
        if connection.getsockname() == connection.getpeername():
            # On this machine, a socket may be assigned the very port that it connects to, if nothing listens there.
            connection.close()
            continue
        link = Link(connection)
        try:
            challenge, own = link.receive(_HELLO, at_most=_LONGEST_HELLO)["challenge"], secrets.token_hex(16)
            hello = {"versions": _versions(), "index": index, "count": meeting.count, "challenge": own}
            link.send(hello | {"proof": meeting.proof(challenge, *hello.values())})
            # Process 0 answers once all have connected, or names the missing ones after `seconds`.
            answer = link.receive(meeting.seconds + _HELLO, at_most=_LONGEST_ANSWER)
            proof = answer["proof"]
        except (ConnectionLost, TimeoutError, ValueError, KeyError, TypeError, RecursionError) as error:
            link.close()
            raise UserError(
                f"process 0 at {where} did not answer process {index} ({error}); see the log of process 0, or choose a free port "
                "in --coordinator if another program is at that one"
            ) from error
        if not meeting.is_proof(proof, "answer", own):
            link.close()
            raise UserError(f"what listens at {where} does not have the token of this run: choose another port in --coordinator")
        if "refused" in answer:
            raise SystemExit(2)
        return link
    raise UserError(
        f"process {index} of {meeting.count}{meeting.origin} could not connect to process 0 at {where} within "
        f"{meeting.seconds:g} s ({reason}): start process 0 there with --process_index=0, or raise "
        f"--initialization_timeout{meeting.advice}"
    )
