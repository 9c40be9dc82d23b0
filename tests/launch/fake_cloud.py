"""Fake cloud and clusters made of folders: programs on PATH named gcloud, kubectl, sbatch ... that record their calls.

`gcloud` keeps the state of its queued resource in the file `state` and its machines as the folders `machines/*`, in which it
runs commands. Every program fails if the first line of the file `fails`, "VERB STATUS MESSAGE", is for it; the line is then
removed.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import fake_programs
from time_limits import FAR_SECONDS

LAUNCH = Path(__file__).parents[2] / "launch"
NAMES = ("gcloud", "kubectl", "sbatch", "scontrol", "scancel", "squeue", "srun", "xpk")
BERTFAM = """\
#!/bin/bash
printf '%s\\n' "$@" > arguments
trap 'kill $!; exit 75' TERM
printf 'run on %s\\n' "${PWD##*/}"
status=$(head -n 1 ends); sed -i 1d ends
if [ "$status" = wait ]; then sleep 1800 & wait $!; fi
if [ "$status" = gone ]; then echo SUSPENDED > ../../state; exit 137; fi
exit "$status"
"""


class Cloud:
    """Folder with the programs, and a record of their calls."""

    def __init__(self, folder, machines=2):
        self.folder = folder
        (folder / "bin").mkdir()
        python = f'"{sys.executable}" -I -S "{fake_programs.__file__}"'
        for name in NAMES:
            self._program(folder / "bin" / name, f'#!/bin/sh\nexec {python} {name} "$@"\n')
        self.machines = [folder / "machines" / f"w{index}" for index in range(machines)]
        for machine in self.machines:
            (machine / "venv/bin").mkdir(parents=True)
            for name, text in {"python": "#!/bin/sh\n", "pip": "#!/bin/sh\n", "bertfam": BERTFAM}.items():
                self._program(machine / "venv/bin" / name, text)
            (machine / "ends").write_text("0\n")

    def set_exits(self, *lines):
        """Set how bertfam exits on each machine, run by run: a status, "wait" (for SIGTERM) or "gone" (with the machines)."""
        for machine in self.machines:
            (machine / "ends").write_text("".join(f"{line}\n" for line in lines))

    def set_failures(self, *lines):
        (self.folder / "fails").write_text("".join(f"{line}\n" for line in lines))

    def launch(self, script, *words, **variables):
        """Run a launcher without the packages that are installed here."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "CLOUD": str(self.folder)} | variables
        return subprocess.run(
            [sys.executable, "-S", LAUNCH / script, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=FAR_SECONDS,
            cwd=self.folder,
        )

    def calls(self):
        """Return the calls so far, [[name, argument ...] ...]; the file `read` has the standard input of the last one."""
        lines = (fake_programs.read(self.folder / "calls") or "").splitlines(keepends=True)
        return [ast.literal_eval(line) for line in lines if line.endswith("\n")]  # the last may be being written

    def verbs(self):
        return [fake_programs.verb(words) for words in self.calls()]

    def _program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)
