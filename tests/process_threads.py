"""Processes of a run as threads of one process, each with its own sockets."""

import socket
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

from time_limits import FAR_SECONDS

from bertfam.multihost import rendezvous
from bertfam.multihost.exit_status import ExitStatusLinks
from bertfam.multihost.processes import Processes
from bertfam.multihost.rendezvous import Meeting, meet


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def run_on_all(count, function):
    """Return the results of `function(processes)` on `count` processes, in order."""
    port = free_port()
    # A busy machine may stand still for longer than a greeting takes.
    patience = patch.object(rendezvous, "_HELLO", FAR_SECONDS)

    def run(index):
        links, exit_status_links = (meet(Meeting("localhost", port, count, "token", FAR_SECONDS), index) for _ in range(2))
        return function(Processes(index, links, exit_status=ExitStatusLinks(exit_status_links)))

    with patience, ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
