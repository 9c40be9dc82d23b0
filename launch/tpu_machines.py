"""Machines of a Cloud TPU queued resource, controlled through gcloud."""

import argparse
import re
import shlex
import tempfile
from pathlib import Path

import common
import slices
import xla_flags
from common import LaunchError

GONE = ("FAILED", "SUSPENDING", "SUSPENDED")  # states of queued resources that have no machines and will get none
# Script that runs on every machine.
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
UNPACK = "tar xzf files.tar.gz || exit 1"
# The lock is held until the command and all of its children have ended, so that STATE and STOP recognise a running job.
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
    """All machines of a queued resource."""

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self._options, self._command = options, command
        self._runner = common.Runner(options.dry_run, options.retry_seconds)

    def state(self, dry_answer: str = "ACTIVE") -> str | None:
        """Return the state of the queued resource; None if it does not exist."""
        words = self._gcloud("describe", self._options.name, "--format=value(state.state)")
        try:
            return self._runner.query(words, dry_answer, final="NOT_FOUND") or None
        except LaunchError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def create(self) -> None:
        """Request the machines."""
        options, slice = self._options, self._options.slice
        nodes = [f"--node-id={options.name}"]
        if slice.count > 1:
            nodes = [f"--node-count={slice.count}", f"--node-prefix={options.name}"]
        runtime = options.runtime or slices.KINDS[slice.kind].runtime
        flags = [*nodes, f"--accelerator-type={slice.accelerator_type}", f"--runtime-version={runtime}"]
        flags += [f"--{tier}" for tier in ("spot", "guaranteed") if getattr(options, tier)]
        flags += [f"--valid-until-duration={options.valid_until}"] if options.valid_until else []
        self._runner.run(self._gcloud("create", options.name, *flags))

    def delete(self) -> None:
        """Delete the machines, even while a run is active."""
        self._runner.run(self._gcloud("delete", self._options.name, "--force", "--quiet"), retries=3)

    def jobs(self) -> list[str]:
        """Return the state of each machine's job: running, stopped, its exit status, or "" if it has none."""
        return re.findall(r"job=(\w*)", self._runner.query(self._ssh(STATE), dry_answer="job=0"))

    def install(self) -> None:
        """Copy the commit that is checked out and the script that runs the command, and install bertfam."""
        if self._options.dry_run:
            print(f"cat > FOLDER/job.sh {common.here_document(self._job())}")
            self._copy("FOLDER")
        else:
            with tempfile.TemporaryDirectory(prefix="bertfam-") as folder:
                Path(folder, "job.sh").write_text(self._job())
                self._copy(folder)
        self._runner.run(self._ssh(f"{UNPACK}\n{INSTALL}" if self._options.copy else INSTALL), retries=3)

    def _copy_files(self, folder: str) -> list[str]:
        """Pack the files of --copy; return the archive, if there is one."""
        if not self._options.copy:
            return []
        archive = f"{folder}/files.tar.gz"
        self._runner.run(["tar", "--create", "--gzip", f"--file={archive}", "--", *self._options.copy])
        return [archive]

    def start(self) -> None:
        """Start the command on all machines."""
        self._runner.run(self._ssh(START))

    def stop(self) -> None:
        """Send SIGTERM to the command on all machines and mark the job as stopped."""
        self._runner.run(self._ssh(STOP))

    def follow(self, new_only: bool = False) -> None:
        """Show the first machine's log, or only its new lines, until the command ends or the connection is lost."""
        script = FOLLOW.format(lines=0 if new_only else "+1")
        try:
            self._runner.run(self._ssh(script, "--ssh-flag=-oServerAliveInterval=30", all_machines=False))
        except LaunchError as error:
            common.report(str(error))

    def show_log(self) -> None:
        """Print the first machine's log."""
        self._runner.run(self._ssh("cat job.log", all_machines=False), retries=3)

    def fetch(self, folder: str, to: str) -> None:
        """Copy a folder of the first machine to this one."""
        self._runner.run(self._gcloud("scp", "--recurse", f"{self._options.name}:{folder}", to), retries=3)

    def _copy(self, folder: str) -> None:
        archive = f"{folder}/bertfam.tar.gz"
        self._runner.run(["git", "-C", str(common.CHECKOUT), "archive", "--format=tar.gz", f"--output={archive}", "HEAD"])
        files = [archive, *self._copy_files(folder), f"{folder}/job.sh"]
        self._runner.run(self._gcloud("scp", *files, f"{self._options.name}:", "--node=all", "--worker=all"), retries=3)

    def _job(self) -> str:
        variables = common.run_token() | xla_flags.environment(self._options.slice.kind, self._options.xla_flags)
        exports = "".join(f"\nexport {name}={shlex.quote(value)}" for name, value in variables.items())
        return JOB.format(variables=exports, command=shlex.join(self._command))

    def _ssh(self, command: str, *flags: str, all_machines: bool = True) -> list[str]:
        workers = ["--node=all", "--worker=all"] if all_machines else ["--node=0", "--worker=0"]
        return self._gcloud("ssh", self._options.name, *workers, *flags, f"--command={command}")

    def _gcloud(self, verb: str, *words: str) -> list[str]:
        project = [f"--project={self._options.project}"] if self._options.project else []
        return ["gcloud", "compute", "tpus", "queued-resources", verb, *words, f"--zone={self._options.zone}", *project]
