"""The benchmark of training steps: tiny cases of both sides on a CPU through the command line, and the table of given figures."""

import itertools
import json
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import xla

from benchmarks import processes, sides, step, training_step
from benchmarks.measurement import ROOT
from benchmarks.processes import Job, run_all

SIZES = ("num_layers = 1", "hidden_size = 16", "num_heads = 2", "feed_forward_size = 32")
TINY = [f"--gin=MODEL.{size}" for size in SIZES] + ["--gin=BATCH_SIZE = 2", "--gin=Stage.length = 32", "--steps=1"]
RECORD = {
    "case": "bert-base-128",
    "side": "bertfam",
    "rows": 256,
    "seconds": 0.05,
    "spread": 0.01,
    "tokens_per_second": 655_360.0,
    "sequences_per_second": 5_120.0,
    "flops": 10**13,
    "peak_flops": 989e12,
    "mfu": 0.36,
    "peak_bytes": 2**34,
    "compile_seconds": 30.0,
    "loss": 10.4,
    "attention": "hopper: the fastest backend",
    "execution": {"Execution.dtype": "bfloat16", "Execution.layers": "unroll"},
    "chosen": {"Execution.layers": "unroll (12 layers on gpu)"},
    "device": "NVIDIA H200",
    "versions": {"jax": "0.11.2"},
    "date": "2026-11-29T20:00:00+00:00",
    "commit": "abc1234",
}
PEER = RECORD | {"side": "Hugging Face", "seconds": 0.06, "attention": "sdpa, default kernels", "peak_bytes": None, "mfu": None}


def records_of(words, capfd, monkeypatch):
    """Measure one case in this process, and return its record."""
    monkeypatch.setattr(sys, "argv", ["step", *words, *TINY])
    assert step.main() == 0
    return json.loads(capfd.readouterr().out.splitlines()[-1])


def test_a_case_compiles_waits_for_its_turn_and_is_timed(tmp_path, monkeypatch, capsys):
    file = tmp_path / "step.jsonl"
    words = ["--no_peers", "--together=1", f"--json={file}", "--case=bert-base-as-shipped", *TINY]
    monkeypatch.setattr(sys, "argv", ["step", *words])
    monkeypatch.chdir(ROOT)
    for name, value in xla.device_environment().items():
        monkeypatch.setenv(name, value)
    assert step.main() == 0  # in a process of its own
    out = capsys.readouterr().out
    (record,) = training_step.read_records(file)
    assert (record["rows"], record["length"], record["compiled_side_by_side"]) == (2, 32, 1)
    assert record["loss"] > 5 and record["flops"] > 0 and record["mfu"] is None
    assert record["chosen"]["Execution.layers"] == "scan (cpu)" and record["execution"]["Execution.dtype"] == "bfloat16"
    assert "| bert-base-as-shipped | bertfam" in out and f"jax {record['versions']['jax']}" in out


def test_packed_rows_are_measured():
    # The logits of the real vocabulary take more time than everything else.
    case = replace(step.CASES["modernbert-base-1024-packed"], vocabulary=500)
    more = [word.removeprefix("--gin=") for word in TINY if word.startswith("--gin=")]
    figures = training_step.measure(case, 1, [*more, "MODEL.window=8"])
    assert figures["tokens_per_second"] * figures["seconds"] == pytest.approx(2 * 32) and figures["rows"] == 2


@pytest.mark.parametrize("case", ["bert-base-as-shipped", "modernbert-base-1024-packed"])
def test_the_peer_steps_on_the_same_rows(case, monkeypatch, capfd):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setitem(step.CASES, case, replace(step.CASES[case], vocabulary=500))
    record = records_of(["--torch_compile=none", "--one", case, "peer"], capfd, monkeypatch)
    run = step.CASES[case].run([word.removeprefix("--gin=") for word in TINY if word.startswith("--gin=")])
    assert record["flops"] == training_step.flops_of(run, training_step.host_rows(run))
    assert record["side"] == "Hugging Face" and 5 < record["loss"] < 20 and record["attention"].startswith("sdpa")


def test_without_torch_one_line_says_so(monkeypatch, capsys):
    find_spec = sides.importlib.util.find_spec
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    monkeypatch.setattr(sys, "argv", ["step", "--case=gpt2-*"])
    jobs = step.jobs_of(step._checked(step._parser()))
    assert [job.name for job in jobs] == ["gpt2-1024, bertfam"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "torch is not installed" in line


@pytest.mark.parametrize("name", step.CASES)
def test_the_files_of_each_case_build_a_run(name):
    case = step.CASES[name]
    run = case.run()
    rates = [value for field, value in vars(run.objective.model).items() if field.endswith("dropout_rate")]
    assert any(rates) == case.drops_out
    assert run.objective.flops(run.shape(0)) > 0


def test_table_from_recorded_lines(tmp_path, monkeypatch, capsys):
    file = tmp_path / "step.jsonl"
    lines = [json.dumps(one) for one in (RECORD | {"seconds": 0.1}, PEER, RECORD, RECORD | {"case": "gpt2-1024"})]
    file.write_text("\n".join(lines) + '\n{"case": "cut sho')
    monkeypatch.setattr(sys, "argv", ["step", "--table", f"--json={file}"])
    assert step.main() == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith(("| b", "| g"))]
    ours, peer, other = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    assert ours == ["bert-base-128", "bertfam", "50.0", "1.0%", "655", "5,120", "36.0%", "16.0", "30", "10.400", "1.20", "hopper"]
    assert peer[1] == "Hugging Face" and peer[6:8] == ["-", "-"] and peer[10] == other[10] == ""
    assert "NVIDIA H200 (peak 989 TFLOP/s), jax 0.11.2, commit abc1234, 2026-11-29" in out
    assert "Execution.layers unroll (12 layers on gpu)" in out and "hopper: the fastest backend" in out


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    step.plot([RECORD, PEER], tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


CHILD = """
import sys, time
from pathlib import Path
name, folder = sys.argv[1], Path(FOLDER)
tries = len([*folder.glob(f"{name}.*")])
(folder / f"{name}.{tries}").touch()
if name == "slow":
    time.sleep(3600)
if name == "large" or name == "crowded" and not tries:
    sys.exit("Traceback\\n\\nJaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory")
print("a line of a library\\nready to be timed", flush=True)
sys.stdin.readline()
others = [path.name for path in folder.iterdir()]
print('{"others": %d}' % len(others))
"""


def limit_the_slow_one(folder, monkeypatch):
    """Have the time of the job "slow" be over once it has started, and that of the others last for ever."""
    init, tries = processes._Running.__init__, itertools.count()

    class Timer(threading.Thread):
        def __init__(self, seconds, stop):
            super().__init__(target=self.stop_slow if seconds == 4 else lambda: None)
            self.stop = stop

        def stop_slow(self):
            path = folder / f"slow.{next(tries)}"
            while not path.exists():
                time.sleep(0.01)
            self.stop()

        def cancel(self):
            self.join()

    names = SimpleNamespace(Timer=Timer, Event=threading.Event, TIMEOUT_MAX=threading.TIMEOUT_MAX)
    monkeypatch.setattr(processes, "threading", names)
    limited = lambda running, job, seconds: init(running, job, seconds if job.name == "slow" else None)  # noqa: E731
    monkeypatch.setattr(processes._Running, "__init__", limited)


def test_a_case_that_fails_is_one_line_and_the_others_continue(monkeypatch, capsys, tmp_path):
    (tmp_path / "started").mkdir()
    (tmp_path / "child.py").write_text(CHILD.replace("FOLDER", repr(str(tmp_path / "started"))))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    limit_the_slow_one(tmp_path / "started", monkeypatch)
    jobs = [Job(name, ["child", name]) for name in ("slow", "large", "good", "crowded", "other")]
    results = {job.name: result for job, result in run_all(jobs, together=4, limit_seconds=4)}
    # "good" was timed after all four of its group had started, and "crowded" was tried again alone.
    assert results == {"good": {"others": 4}, "other": {"others": 5}, "crowded": {"others": 8}}
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("slow: stopped after 4 s") == 2
    assert lines.count("large: JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory") == 2


def test_a_failure_is_the_last_line_of_the_process(capsys):
    def fail():
        raise RuntimeError("\nout of memory\nwhile allocating")

    assert processes.print_result(fail) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "RuntimeError: out of memory"


def test_mistakes(monkeypatch, capsys, tmp_path):
    mistakes = {
        "--case=bart": ["--case=bart"],
        "--peers_only": ["--no_peers", "--peers_only"],
        "--json": ["--table", f"--json={tmp_path}/none.jsonl"],
        "--steps": ["--steps=0"],
    }
    for name, words in mistakes.items():
        monkeypatch.setattr(sys, "argv", ["step", *words])
        with pytest.raises(SystemExit) as stopped:
            step.main()
        assert stopped.value.code == 2 and name in capsys.readouterr().err
