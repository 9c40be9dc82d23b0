"""Rendezvous of the processes of a run over plain sockets, before JAX starts, so that a missing process can be named.

`jax.distributed.initialize` alone was considered. If a process is missing, it aborts the others with a stack dump and status 134
(jax 0.10.2), and does not name the missing one. So the processes first connect to the coordinator's port, where each sends its
index to process 0. Process 0 then frees the port for JAX, and the connections remain for messages outside of JAX: one JSON value
per line.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable
from importlib import metadata
from multiprocessing.connection import wait
from typing import Any, NoReturn

from bertfam.errors import UserError
from bertfam.version import __version__

_RETRY = 0.2  # seconds
_HELLO = 5.0  # seconds in which a connected process must send its greeting
_LONGEST_HELLO = 1000  # bytes
# A lost machine is detected after a minute, not after Linux's two hours.
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
}


def describe_processes(indices: Iterable[int]) -> str:
    """Describe processes: "process 1", or "processes 1, 2"."""
    numbers = [str(index) for index in indices]
    return f"process{'' if len(numbers) == 1 else 'es'} {', '.join(numbers)}"


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
          at_most: largest size of a value in bytes; None: unlimited.

        Raises:
          TimeoutError: if no value arrived in time; a partly received one is kept.
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


def meet(host: str, port: int, index: int, count: int, seconds: float) -> list[Link]:
    """Wait until all processes have connected.

    Args:
      host: host of process 0.
      port: port that process 0 listens on; it is free again afterwards.
      index: index of this process, from 0.
      count: number of processes.
      seconds: how long to wait.

    Returns:
      On process 0 the links to processes 1, 2, ...; on another process its link to process 0.

    Raises:
      UserError: on process 0, if a process did not connect or its flags do not match; on another, if process 0 is unreachable.
      SystemExit: on the other processes, if process 0 raises UserError.
    """
    return _gather(port, count, seconds) if index == 0 else [_join(host, port, index, count, seconds)]


def _gather(port: int, count: int, seconds: float) -> list[Link]:
    end = time.monotonic() + seconds
    connected: dict[int, Link] = {}
    with _listen(port) as listener:
        while True:
            # A process that disconnected, perhaps to be restarted, does not count.
            connected = {index: link for index, link in connected.items() if not link.is_gone()}
            if len(connected) == count - 1:
                break
            listener.settimeout(max(end - time.monotonic(), 1e-3))
            try:
                link = Link(listener.accept()[0])
            except TimeoutError:
                missing = [index for index in range(1, count) if index not in connected]
                _refuse(
                    connected.values(),
                    f"{describe_processes(missing)} of {count} did not connect to port {port} within {seconds:g} s: start them "
                    "with the same --coordinator, or raise --initialization_timeout",
                )
            if hello := _hello(link):
                if mistake := _mistake(hello, count, connected):
                    _refuse([*connected.values(), link], mistake)
                connected[hello["index"]] = link
    links = [connected[index] for index in range(1, count)]
    for link in links:
        with contextlib.suppress(ConnectionLost):  # the next receive reports it
            link.send({})
    return links


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on port {port} ({os.strerror(error.errno or 0)}); choose another port in --coordinator"
        ) from error


def _hello(link: Link) -> dict[str, Any] | None:
    """Read the greeting of a connection; return None if it is not a bertfam process."""
    try:
        hello = link.receive(_HELLO, at_most=_LONGEST_HELLO)
    except (TimeoutError, ConnectionLost, ValueError):
        hello = None
    if isinstance(hello, dict) and hello.keys() == {"versions", "index", "count"}:
        return hello
    link.close()
    return None


def _versions() -> str:
    return f"bertfam {__version__} and jax {metadata.version('jax')}"


def _mistake(hello: dict[str, Any], count: int, connected: dict[int, Link]) -> str | None:
    """Return why a greeting does not match process 0; None if it matches."""
    index = hello["index"]
    if hello["versions"] != _versions():
        return f"process {index} has {hello['versions']} and process 0 {_versions()}; install the same everywhere"
    if hello["count"] != count:
        return f"process {index} was started with --num_processes={hello['count']}, process 0 with --num_processes={count}"
    if index in connected and not connected[index].is_gone():
        return f"two processes were started with --process_index={index}; number them from 0 to {count - 1}"
    return None


def _refuse(links: Iterable[Link], line: str) -> NoReturn:
    for link in links:
        with contextlib.suppress(ConnectionLost):
            link.send({"refused": line})
    raise UserError(line)


def _join(host: str, port: int, index: int, count: int, seconds: float) -> Link:
    end = time.monotonic() + seconds
    reason = ""
    while (left := end - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((host, port), timeout=left)
        except OSError as error:  # process 0 does not listen yet, or its name does not resolve yet
            reason = error.strerror or str(error)
            time.sleep(_RETRY)
            continue
        if connection.getsockname() == connection.getpeername():
            # On this machine, a socket may be assigned the very port that it connects to, if nothing listens there.
            connection.close()
            continue
        link = Link(connection)
        try:
            link.send({"versions": _versions(), "index": index, "count": count})
            # Process 0 answers once all have connected, or names the missing ones after `seconds`.
            answer = link.receive(seconds + _HELLO)
        except (ConnectionLost, TimeoutError, ValueError) as error:
            raise UserError(
                f"process 0 at {host}:{port} did not answer process {index} ({error}); see the log of process 0"
            ) from error
        if "refused" in answer:
            raise SystemExit(2)
        return link
    raise UserError(
        f"process {index} could not connect to process 0 at {host}:{port} within {seconds:g} s ({reason}): start process 0 there "
        "with --process_index=0, or raise --initialization_timeout"
    )
