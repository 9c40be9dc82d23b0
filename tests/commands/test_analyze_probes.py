"""`bertfam analyze probes` over the checkpoints of a run."""

import json

import numpy as np
import pytest

from bertfam import cli
from bertfam.analysis.probes.networks import PROBES

TAGS = [
    "the\tDET\nlist\tNOUN\nis\tVERB\nsorted\tVERB\n",
    "a\tDET\nclass\tNOUN\n",
    "it\tPRON\nreturns\tVERB\na\tDET\nname\tNOUN\n",
]


OWN = """\
from bertfam.analysis.probes.networks import PROBES, LinearSpanProbe


class OwnProbe(LinearSpanProbe):
    pass


PROBES["own"] = OwnProbe
"""


def test_checkpoints_of_a_run_with_a_probe_of_ones_own(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(PROBES, "own", None)  # which the module replaces, and the end of the test removes
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_probe.py").write_text(OWN)
    (tmp_path / "tags.conll").write_text("\n".join(TAGS))
    page = tmp_path / "probes.html"
    words = [f"--{name}={tmp_path / 'tags.conll'}" for name in ("tags", "tags_held_out")]
    words += [f"--model_dir={trained.model_dir}@15,20,24", "--random_init", "--seeds=3", "--json", f"--output={page}"]
    assert (
        cli.main(["analyze", "probes", *words, "--epochs=30", "--learning_rate=0.05", "--probe=own", "--module_import=own_probe"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["probe"] == "own"
    tags = report["tasks"]["tags"]
    assert tags["classes"] == ["DET", "NOUN", "PRON", "VERB"] and tags["train"] == tags["held_out"] == 10
    assert list(tags["scores"]) == ["step 15", "step 20", "step 24", "random initialisation"]
    for scores in tags["scores"].values():
        # Ten words, which the hidden states of any layer tell apart.
        assert np.min(scores["accuracy"]) >= 0.9
        assert scores["centre_of_gravity"][0] == pytest.approx(np.dot(range(len(scores["weights"][0])), scores["weights"][0]))
    weights = [own["weights"][0] for own in tags["scores"].values()]
    assert len({tuple(own) for own in weights}) == 4  # features of each checkpoint are its own
    text = page.read_text()
    assert text.count("<svg") == 3 and "tags, accuracy by step" in text and "layer 0" in text
