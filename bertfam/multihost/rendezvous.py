"""Rendezvous of the processes of a run over plain sockets, before JAX starts, so that a missing process can be named.

`jax.distributed.initialize` ends a process with a stack dump when another is missing, and names none. So the processes
first meet at the coordinator's port, where each sends process 0 its number. Process 0 then leaves the port to JAX, and the
connections remain for messages outside of JAX: one JSON value a line.
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
_HELLO = 5.0  # seconds in which a process that has connected says who it is
_LONGEST_HELLO = 1000  # bytes
_VANISHED = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # noticed after a minute; by Linux's own after two hours


def describe_processes(indices: Iterable[int]) -> str:
    """Describe processes: process 1, or processes 1, 2."""
    numbers = [str(index) for index in indices]
    return f"process{'' if len(numbers) == 1 else 'es'} {', '.join(numbers)}"


class ConnectionLost(Exception):
    """Loss of the connection to another process."""


class Link:
    """Connection that carries JSON values, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        # A machine that vanishes is noticed too, before JAX's service, after 100 seconds, kills the processes of all others.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _VANISHED.items():
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
          seconds: how long to wait; None: without end.
          at_most: bytes of a value.

        Raises:
          TimeoutError: nothing has come; what has come in part is kept.
          ConnectionLost: nobody is there any more.
          ValueError: it is no JSON, or longer than it may be.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._received:
            self.connection.settimeout(None if end is None else max(end - time.monotonic(), 1e-3))
            try:
                more = self.connection.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            finally:
                self.connection.settimeout(None)
            if not more:
                raise ConnectionLost("it has closed the connection")
            self._received += more
            if at_most is not None and len(self._received) > at_most:
                raise ValueError("the value is too long")
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    @property
    def has_received(self) -> bool:
        """True if a value was already received together with the previous one."""
        return b"\n" in self._received

    def is_gone(self) -> bool:
        """Return whether the other process is gone, while nothing is expected from it."""
        return bool(wait([self.connection], 0))

    def shut(self) -> None:
        """Shut the connection down; the other end notices, and so does a thread here that waits to receive."""
        with contextlib.suppress(OSError):  # the other end has
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which no thread of this process may be using; the other end notices."""
        self.connection.close()


def meet(host: str, port: int, index: int, count: int, seconds: float) -> list[Link]:
    """Wait until all processes have connected.

    Args:
      host: where process 0 runs.
      port: that it listens on; free again afterwards.
      index: this process, from 0.
      count: of all processes.
      seconds: how long to wait.

    Returns:
      of process 0 the links to processes 1, 2, ...; of another its link to process 0.

    Raises:
      UserError: some process did not come, or its flags do not fit; told by process 0, or where that cannot be reached.
      SystemExit: process 0 has told.
    """
    return _gather(port, count, seconds) if index == 0 else [_join(host, port, index, count, seconds)]


def _gather(port: int, count: int, seconds: float) -> list[Link]:
    end = time.monotonic() + seconds
    found: dict[int, Link] = {}
    with _listen(port) as listener:
        while True:
            # One that went away, to be started again perhaps, has not come.
            found = {index: link for index, link in found.items() if not link.is_gone()}
            if len(found) == count - 1:
                break
            listener.settimeout(max(end - time.monotonic(), 1e-3))
            try:
                link = Link(listener.accept()[0])
            except TimeoutError:
                missing = [index for index in range(1, count) if index not in found]
                _refuse(
                    found.values(),
                    f"{describe_processes(missing)} of {count} did not come to port {port} within {seconds:g} s: start what is "
                    "missing, with the same --coordinator, or wait longer by --initialization_timeout",
                )
            if hello := _hello(link):
                if wrong := _mistake(hello, count, found):
                    _refuse([*found.values(), link], wrong)
                found[hello["index"]] = link
    links = [found[index] for index in range(1, count)]
    for link in links:
        with contextlib.suppress(ConnectionLost):  # the first that is asked of it will tell
            link.send({})
    return links


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise UserError(
            f"process 0 cannot listen on port {port} ({os.strerror(error.errno or 0)}); name another in --coordinator"
        ) from error


def _hello(link: Link) -> dict[str, Any] | None:
    """Read the greeting of a connection; None if it is not a bertfam process."""
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


def _mistake(hello: dict[str, Any], count: int, found: dict[int, Link]) -> str | None:
    index = hello["index"]
    if hello["versions"] != _versions():
        return f"process {index} has {hello['versions']} and process 0 {_versions()}; install the same everywhere"
    if hello["count"] != count:
        return f"process {index} was started with --num_processes={hello['count']}, process 0 with --num_processes={count}"
    if index in found and not found[index].is_gone():
        return f"two processes were started with --process_index={index}; number them from 0 to {count - 1}"
    return None


def _refuse(links: Iterable[Link], line: str) -> NoReturn:
    for link in links:
        with contextlib.suppress(ConnectionLost):
            link.send({"refused": line})
    raise UserError(line)


def _join(host: str, port: int, index: int, count: int, seconds: float) -> Link:
    end = time.monotonic() + seconds
    why = ""
    while (left := end - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((host, port), timeout=left)
        except OSError as error:  # nobody listens yet, or the name is not known yet
            why = error.strerror or str(error)
            time.sleep(_RETRY)
            continue
        if connection.getsockname() == connection.getpeername():
            # A port of this machine that nobody listens on may be given to the very socket that calls it.
            connection.close()
            continue
        link = Link(connection)
        try:
            link.send({"versions": _versions(), "index": index, "count": count})
            # Process 0 answers when all have come, and says who has not: it is given the time to.
            answer = link.receive(seconds + _HELLO)
        except (ConnectionLost, TimeoutError, ValueError) as error:
            raise UserError(f"process 0 at {host}:{port} has not answered process {index} ({error}); see its log") from error
        if "refused" in answer:
            raise SystemExit(2)
        return link
    raise UserError(
        f"process {index} has found no process 0 at {host}:{port} within {seconds:g} s ({why}): start it with "
        "--process_index=0 there, or wait longer by --initialization_timeout"
    )
