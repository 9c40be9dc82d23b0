"""Programs of the fake cloud; see fake_cloud.py. It is started hundreds of times, so it imports only what starts at once."""

import os
import sys


def verb(words):
    """Return the action of a call."""
    command = next((word for word in words if word.startswith("--command=")), "")
    known = {"pip install": "install", "setsid": "start", "echo job=": "jobs", "tail": "follow", "kill": "stop", "cat": "cat"}
    plain = [word for word in words if not word.startswith("--")]
    return next(
        (name for part, name in known.items() if part in command), plain[{"gcloud": 4, "xpk": 2, "sbatch": 0}.get(words[0], 1)]
    )


def read(path):
    """Return the text of a file, None without the file."""
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def run(words, folder=None, **variables):
    """Run a program in a folder and return its exit status."""
    if folder:
        os.chdir(folder)
    return os.spawnvpe(os.P_WAIT, words[0], words, {**os.environ, **variables})


def gcloud(cloud, words):
    state = f"{cloud}/state"
    machines = sorted(entry.path for entry in os.scandir(f"{cloud}/machines"))
    action = words[4]
    if action == "describe":
        states = read(state)
        if states is None:
            print("ERROR: (gcloud) NOT_FOUND: Resource was not found", file=sys.stderr)
            return 1
        first, *rest = states.split()
        if rest:
            write(state, " ".join(rest))
        print(first)
    elif action == "create":
        write(state, "WAITING_FOR_RESOURCES PROVISIONING ACTIVE")
    elif action == "delete":
        os.remove(state)
    elif read(state) not in ("ACTIVE", "ACTIVE\n"):
        print("ERROR: no machines", file=sys.stderr)
        return 1
    elif action == "scp" and "--recurse" in words:
        return run(["cp", "-r", f"{machines[0]}/{words[6].partition(':')[2]}", words[7]])
    elif action == "scp":
        files = words[5 : next(place for place, word in enumerate(words) if word.endswith(":"))]
        return max(run(["cp", *files, machine]) for machine in machines)
    else:
        command = next(word.removeprefix("--command=") for word in words if word.startswith("--command="))
        selected = machines if "--worker=all" in words else machines[:1]
        return max(run(["bash", "-c", command], machine, HOME=machine) for machine in selected)
    return 0


def main(words):
    cloud = os.environ["CLOUD"]
    with open(f"{cloud}/calls", "a") as calls:
        calls.write(f"{words!a}\n")
    lines = (read(f"{cloud}/fails") or "").splitlines()
    if words[0] in ("kubectl", "sbatch"):
        write(f"{cloud}/read", sys.stdin.read())
    if lines and lines[0].split()[0] == verb(words):
        _, status, message = lines[0].split(maxsplit=2)
        write(f"{cloud}/fails", "".join(f"{line}\n" for line in lines[1:]))
        print(message.replace("\\n", "\n"), file=sys.stderr)
        return int(status)
    if words[0] == "squeue":
        print(os.environ.get("JOB_STATE", "RUNNING"))
    if words[0] == "srun":
        return run(["bash", "-c", os.environ["STEP"]])
    if words[0] == "scancel":
        run(["bash", "-c", 'kill -TERM "$(cat "$CLOUD/step.pid")"'])
    return gcloud(cloud, words) if words[0] == "gcloud" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
