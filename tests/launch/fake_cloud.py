"""Fake cloud and clusters made of folders: programs on PATH named gcloud, kubectl, sbatch ... that record their calls.

`gcloud` keeps the state of its queued resource in the file `state` and its machines as the folders `machines/*`, in which it
runs commands. Every program fails if the first line of the file `fails`, "VERB STATUS MESSAGE", is for it; the line is then
removed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

LAUNCH = Path(__file__).parents[2] / "launch"
NAMES = ("gcloud", "kubectl", "sbatch", "scontrol", "scancel", "squeue", "srun", "xpk")
BERTFAM = """\
#!/bin/bash
printf '%s\\n' "$@" > arguments
trap 'kill $!; exit 75' TERM
printf 'run on %s\\n' "${PWD##*/}"
status=$(head -n 1 ends); sed -i 1d ends
if [ "$status" = wait ]; then sleep 60 & wait $!; fi
if [ "$status" = gone ]; then echo SUSPENDED > ../../state; exit 137; fi
exit "$status"
"""


class Cloud:
    """Folder with the programs, and a record of their calls."""

    def __init__(self, folder, machines=2):
        self.folder = folder
        (folder / "bin").mkdir()
        for name in NAMES:
            self._program(folder / "bin" / name, f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" {name} "$@"\n')
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
            [sys.executable, LAUNCH / script, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
        )

    def calls(self):
        """Return the calls so far, [[name, argument ...] ...]; the file `read` has the standard input of the last one."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self):
        return [verb(words) for words in self.calls()]

    def _program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)


def verb(words):
    """Return the action of a call."""
    command = next((word for word in words if word.startswith("--command=")), "")
    known = {"pip install": "install", "setsid": "start", "echo job=": "jobs", "tail": "follow", "kill": "stop", "cat": "cat"}
    plain = [word for word in words if not word.startswith("--")]
    return next(
        (name for part, name in known.items() if part in command), plain[{"gcloud": 4, "xpk": 2, "sbatch": 0}.get(words[0], 1)]
    )


def gcloud(cloud, words):
    state = cloud / "state"
    machines = sorted((cloud / "machines").iterdir())
    action = words[4]
    if action == "describe":
        if not state.exists():
            print("ERROR: (gcloud) NOT_FOUND: Resource was not found", file=sys.stderr)
            return 1
        first, *rest = state.read_text().split()
        if rest:
            state.write_text(" ".join(rest))
        print(first)
    elif action == "create":
        state.write_text("WAITING_FOR_RESOURCES PROVISIONING ACTIVE")
    elif action == "delete":
        state.unlink()
    elif state.read_text() not in ("ACTIVE", "ACTIVE\n"):
        print("ERROR: no machines", file=sys.stderr)
        return 1
    elif action == "scp" and "--recurse" in words:
        return subprocess.run(["cp", "-r", machines[0] / words[6].partition(":")[2], words[7]]).returncode
    elif action == "scp":
        files = words[5 : next(place for place, word in enumerate(words) if word.endswith(":"))]
        return max(subprocess.run(["cp", *files, machine]).returncode for machine in machines)
    else:
        command = next(word.removeprefix("--command=") for word in words if word.startswith("--command="))
        selected = machines if "--worker=all" in words else machines[:1]
        return max(
            subprocess.run(["bash", "-c", command], cwd=machine, env=os.environ | {"HOME": str(machine)}).returncode
            for machine in selected
        )
    return 0


def main(words):
    cloud = Path(os.environ["CLOUD"])
    with open(cloud / "calls", "a") as calls:
        calls.write(json.dumps(words) + "\n")
    fails = cloud / "fails"
    lines = fails.read_text().splitlines() if fails.exists() else []
    if words[0] in ("kubectl", "sbatch"):
        (cloud / "read").write_text(sys.stdin.read())
    if lines and lines[0].split()[0] == verb(words):
        _, status, message = lines[0].split(maxsplit=2)
        fails.write_text("".join(f"{line}\n" for line in lines[1:]))
        print(message.replace("\\n", "\n"), file=sys.stderr)
        return int(status)
    if words[0] == "squeue":
        print(os.environ.get("JOB_STATE", "RUNNING"))
    if words[0] == "srun":
        return subprocess.run(["bash", "-c", os.environ["STEP"]]).returncode
    if words[0] == "scancel":
        subprocess.run(["bash", "-c", 'kill -TERM "$(cat "$CLOUD/step.pid")"'])
    return gcloud(cloud, words) if words[0] == "gcloud" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
