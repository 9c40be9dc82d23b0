"""`Run.evaluations`: probes of texts and words while a run trains, their metrics, and an evaluation of a user's own."""

import dataclasses
import json

import numpy as np
import pytest
from command_line import in_process

from bertfam import cli
from bertfam.commands import pretrain_run
from bertfam.training.evaluations.base import Evaluation
from bertfam.training.evaluations.hook import DOWNSTREAM
from bertfam.training.model_dir import read_run

# The first sentences of documents that are like, and unlike, those of the shared run.
SENTENCES = [
    (f"{verb} the {name}", verb) for name in ("list", "class", "name", "value", "object") for verb in ("returns", "raises")
]


@dataclasses.dataclass(frozen=True)
class Lengths(Evaluation):
    """Evaluation of a user's own."""

    name: str = "own"
    every: int = 8

    def read(self):
        return [["a text"], ["another one"]]

    def measure(self, content, features):
        return {"width": features(content).shape[1], "finite": float(np.isfinite(features(content)).all())}


@pytest.fixture(scope="module")
def initialisation():
    """Keep the model's own initial values, whose features tell the sentences apart."""


@pytest.fixture
def words(trained, tmp_path):
    """Return the command line of the shared run, of 12 shorter updates, with a probe on sentences."""
    (tmp_path / "probe.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in 3 * SENTENCES))
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "".join(f"{text} here\t{label}\n" for text, label in SENTENCES))
    for name, again in (("words", "a"), ("words_dev", "the")):
        tagged = (f"{verb}\tVERB\n{again}\tDET\n{text.split()[-1]}\tNOUN\n\n" for text, verb in SENTENCES)
        (tmp_path / f"{name}.conll").write_text("".join(tagged))
    probe = {
        "Run.evaluations": "(@FeatureProbe(), @WordProbes())",
        "WordProbes.train": repr(str(tmp_path / "words.conll")),
        "WordProbes.held_out": repr(str(tmp_path / "words_dev.conll")),
        "WordProbes.every": "10",
        "WordProbes.name": "'tags'",
        "FeatureProbe.corpus": "@probe/LabelledFiles()",
        "FeatureProbe.every": "5",
        "FeatureProbe.name": "'verbs'",
        "probe/LabelledFiles.train": repr((str(tmp_path / "probe.tsv"),)),
        "probe/LabelledFiles.validation": repr((str(tmp_path / "dev.tsv"),)),
        "Run.stages": "(@short/Stage(),)",
    }
    flags = [f"--gin.{name}={value}" for name, value in probe.items()]
    return [*trained.pretrain(tmp_path / "model"), f"--cache_dir={trained.model_dir / 'cache'}", *flags]


def lines(model_dir):
    written = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return {line.pop("step"): line for line in written if line.pop("split") == DOWNSTREAM}


def test_a_probe_is_measured_at_its_steps_and_the_same_after_a_restart(words, tmp_path, monkeypatch, capsys):
    words = [word for word in words if not word.startswith(("--input", "--validation_input"))]
    open_evaluations = pretrain_run.open_evaluations

    def with_own(trainer, vocabulary):
        more = dataclasses.replace(trainer.run, evaluations=(*trainer.run.evaluations, Lengths()))
        monkeypatch.setattr(trainer, "run", more)
        return open_evaluations(trainer, vocabulary)

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_run, "open_evaluations", with_own)
        done = in_process(*words)
    assert done.returncode == 0, done.stderr
    found = lines(tmp_path / "model")
    assert list(found) == [5, 8, 10, 12] and found[5].keys() == {"verbs/accuracy", "verbs/mcc"}
    assert found[8] == {"own/width": 16, "own/finite": 1} and found[10].keys() > {f"tags/layer_{layer}" for layer in range(3)}
    assert "step 5 downstream  verbs/accuracy" in done.stdout and done.stdout.count("compiling stage") == 1
    assert found[12]["verbs/accuracy"] == 1
    assert read_run(tmp_path / "model").evaluations[0].name == "verbs"
    # The line of the last step was not written.
    path = tmp_path / "model/metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if DOWNSTREAM not in line))
    again = in_process("pretrain", f"--model_dir={tmp_path / 'model'}")
    assert again.returncode == 0, again.stderr
    assert lines(tmp_path / "model") == {12: {name: found[12][name] for name in found[12] if not name.startswith("own")}}
    # Words are probed as `bertfam analyze probes` does.
    files = [f"--tags={tmp_path / 'words.conll'}", f"--tags_held_out={tmp_path / 'words_dev.conll'}"]
    assert cli.main(["analyze", "probes", f"--model_dir={tmp_path / 'model'}", *files, "--seeds=0", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["tasks"]["tags"]["scores"]["trained"]
    assert [found[12][f"tags/layer_{layer}"] for layer in range(3)] == pytest.approx(scores["accuracy"][0])
    assert [found[12][f"tags/{name}"] for name in ("mix", "mix_selectivity")] == pytest.approx(
        [scores["mix"][0], scores["mix_selectivity"][0]]
    )


def test_mistakes_in_probes_are_found_before_training(words, tmp_path, capsys):
    (tmp_path / "dev.tsv").write_text("text\tclass\na\tb\n")
    assert cli.main(words) == 2
    assert "dev.tsv:2: no column 'label'" in capsys.readouterr().err and not (tmp_path / "model").exists()
    assert cli.main([*words, "--gin.FeatureProbe.at_most=0"]) == 2
    assert "FeatureProbe.at_most is 0" in capsys.readouterr().err
    assert cli.main([*words, "--gin.WordProbes.task='tag'"]) == 2
    assert "WordProbes.task is 'tag', none of tags, " in capsys.readouterr().err
