"""`bertfam doctor`: what it finds, and its exit status where something is broken."""

import importlib.metadata

import pytest

from bertfam import cli
from bertfam.commands import doctor_run


def test_a_sound_installation_trains_a_small_model(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "a model of 2 layers, 80 updates: loss" in out and "BROKEN" not in out and out.endswith("all is well\n")
    assert "jax " in out and "CPU cores" in out and "GiB free" in out and "bertfam[" in out


@pytest.mark.parametrize(
    ("name", "replacement", "words"),
    [
        ("_losses", lambda scratch: [4.0, 3.9], "the loss does not fall"),
        ("_losses", lambda scratch: [], "a small model was not trained"),
        ("_IMPORTS", ("jax", "no_such_library"), "no_such_library cannot be imported"),
        ("_LEAST_FREE", 2**80, "nearly full"),
    ],
)
def test_faults_are_lines_and_the_exit_status(name, replacement, words, capsys, monkeypatch):
    monkeypatch.setattr(doctor_run, name, replacement)
    assert cli.main(["doctor", *["--skip_training"] * (name != "_losses")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("BROKEN") and words in line for line in lines) and "fault" in lines[-1]


def test_devices_that_do_not_start_are_a_fault(capsys, monkeypatch):
    import jax

    def devices():
        raise RuntimeError("Unable to initialize backend 'cuda':\nno device")

    monkeypatch.setattr(jax, "devices", devices)
    assert cli.main(["doctor"]) == 1
    assert "the devices of JAX do not start (Unable to initialize backend 'cuda': no device)" in capsys.readouterr().out


def test_requirements_of_extras_and_their_extras(monkeypatch):
    requires = {
        "bertfam": ["jax>=0.1", "old>=2", 'gone; extra == "fast"', 'jax[gpu]; extra == "fast"', 'x; python_version < "3"'],
        "jax": ['plugin>3; extra == "gpu"', "unseen"],
    }
    versions = {"jax": "0.10", "old": "1.9", "plugin": "3"}

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", requires.get)
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor_run._unmet("bertfam", "") == ["old is 1.9, and >=2 is required"]
    assert doctor_run._unmet("bertfam", "fast") == ["gone is not installed", "plugin is 3, and >3 is required"]
