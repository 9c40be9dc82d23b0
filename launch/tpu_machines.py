"""The machines of a queued resource of Cloud TPU, through gcloud."""

import argparse
import re
import shlex
import tempfile
from pathlib import Path

import common
import slices
import xla_flags
from common import Failed

GONE = ("FAILED", "SUSPENDING", "SUSPENDED")  # states of queued resources that will never (again) have machines
# What runs on every machine.
JOB = """\
#!/usr/bin/env bash
cd || exit 1
export PATH="$HOME/venv/bin:$PATH"{variables}
{command} < /dev/null >> job.log 2>&1 &
echo $! > job.pid
wait $!
echo $? > job.status
"""
INSTALL = """\
set -e
rm -rf bertfam
mkdir bertfam
tar xzf bertfam.tar.gz -C bertfam
test -x venv/bin/python || python3 -m venv venv
venv/bin/pip install --quiet './bertfam[tpu,gcs]'"""
# The lock is held from here until the command, and all that it has started, has ended: who asks next hears of this job.
START = """\
exec 9> job.lock
flock --timeout 10 9 || exit 1
rm -f job.pid job.status job.stopped
setsid nohup bash job.sh > /dev/null 2>&1 < /dev/null &"""
STATE = """\
if ! flock --nonblock job.lock true; then echo job=running
elif test -e job.stopped; then echo job=stopped
else echo "job=$(cat job.status 2> /dev/null)"
fi"""
STOP = """\
touch job.stopped
flock --nonblock job.lock true || kill -TERM "$(cat job.pid)\""""
FOLLOW = """\
for _ in $(seq 100); do test -s job.pid && break; sleep 0.1; done
tail -n {lines} -F --pid="$(cat job.pid)" job.log"""


class Machines:
    """All machines of one name in one zone."""

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self._options, self._command = options, command
        self._runner = common.Runner(options.dry_run, options.retry_seconds)

    def state(self, supposed: str = "ACTIVE") -> str | None:
        """Of the queued resource; None where there is none."""
        words = self._gcloud("describe", self._options.name, "--format=value(state.state)")
        try:
            return self._runner.ask(words, supposed, final="NOT_FOUND") or None
        except Failed as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def create(self) -> None:
        """Asks for them."""
        options, wanted = self._options, self._options.slice
        nodes = [f"--node-id={options.name}"]
        if wanted.count > 1:
            nodes = [f"--node-count={wanted.count}", f"--node-prefix={options.name}"]
        runtime = options.runtime or slices.KINDS[wanted.kind].runtime
        flags = [*nodes, f"--accelerator-type={wanted.accelerator_type}", f"--runtime-version={runtime}"]
        flags += [f"--{tier}" for tier in ("spot", "guaranteed") if getattr(options, tier)]
        flags += [f"--valid-until-duration={options.valid_until}"] if options.valid_until else []
        self._runner.run(self._gcloud("create", options.name, *flags))

    def delete(self) -> None:
        """Deletes them, whatever runs there."""
        self._runner.run(self._gcloud("delete", self._options.name, "--force", "--quiet"), retries=3)

    def jobs(self) -> list[str]:
        """Of each machine's job: running, stopped, its exit status, or "" where it has none."""
        return re.findall(r"job=(\w*)", self._runner.ask(self._ssh(STATE), supposed="job=0"))

    def install(self) -> None:
        """Copies the commit that is checked out, and the script that runs the command, and installs bertfam."""
        if self._options.dry_run:
            print(f"cat > FOLDER/job.sh << 'END'\n{self._job()}END")
            self._copy("FOLDER")
        else:
            with tempfile.TemporaryDirectory(prefix="bertfam-") as folder:
                Path(folder, "job.sh").write_text(self._job())
                self._copy(folder)
        self._runner.run(self._ssh(INSTALL), retries=3)

    def start(self) -> None:
        """Starts the command on all."""
        self._runner.run(self._ssh(START))

    def stop(self) -> None:
        """Sends SIGTERM to the command on all, for good."""
        self._runner.run(self._ssh(STOP))

    def follow(self, again: bool = False) -> None:
        """Shows the first machine's log, or what is new in it, until the command ends or the connection does."""
        show = FOLLOW.format(lines=0 if again else "+1")
        try:
            self._runner.run(self._ssh(show, "--ssh-flag=-oServerAliveInterval=30", every=False))
        except Failed as error:
            common.tell(str(error))

    def show_log(self) -> None:
        """Prints the first machine's log."""
        self._runner.run(self._ssh("cat job.log", every=False), retries=3)

    def fetch(self, folder: str, to: str) -> None:
        """Copies a folder of the first machine."""
        self._runner.run(self._gcloud("scp", "--recurse", f"{self._options.name}:{folder}", to), retries=3)

    def _copy(self, folder: str) -> None:
        archive = f"{folder}/bertfam.tar.gz"
        self._runner.run(["git", "-C", str(common.CHECKOUT), "archive", "--format=tar.gz", f"--output={archive}", "HEAD"])
        here = [archive, f"{folder}/job.sh"]
        self._runner.run(self._gcloud("scp", *here, f"{self._options.name}:", "--node=all", "--worker=all"), retries=3)

    def _job(self) -> str:
        variables = xla_flags.environment(self._options.slice.kind, self._options.xla_flags)
        exports = "".join(f"\nexport {name}={shlex.quote(value)}" for name, value in variables.items())
        return JOB.format(variables=exports, command=shlex.join(self._command))

    def _ssh(self, command: str, *flags: str, every: bool = True) -> list[str]:
        where = ["--node=all", "--worker=all"] if every else ["--node=0", "--worker=0"]
        return self._gcloud("ssh", self._options.name, *where, *flags, f"--command={command}")

    def _gcloud(self, verb: str, *words: str) -> list[str]:
        project = [f"--project={self._options.project}"] if self._options.project else []
        return ["gcloud", "compute", "tpus", "queued-resources", verb, *words, f"--zone={self._options.zone}", *project]
