"""LEGAL-BERT's ways on small texts: losses per character follow the caches' counts; splits do not overlap."""

import json
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import domain_adaptation
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError

pytest.importorskip("psutil")
TINY = ("num_layers=1", "hidden_size=16", "num_heads=2", "feed_forward_size=32", "dropout_rate=0.0", "attention_dropout_rate=0.0")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    topics = [" ".join(text.split())[:2000].strip() for _, text in sorted(pydoc_data.topics.topics.items())]
    (folder / "general.txt").write_text("\n\n".join(topics[::2]))
    (folder / "domain.txt").write_text("\n\n".join(topics[1::2]))
    return folder


def test_all_ways_are_scored_on_the_same_documents(texts, tmp_path, monkeypatch, capsys, modules_in_process):
    words = [f"--general={texts / 'general.txt'}", f"--domain={texts / 'domain.txt'}", "--input_format=paragraphs"]
    words += [
        "--general_steps=2",
        "--steps=2",
        "--batch_size=4",
        "--length=16",
        "--vocab_size=300",
        f"--output={tmp_path / 'out'}",
    ]
    words += [f"--gin=BertConfig.{size}" for size in TINY]
    run_command, ways = subprocess.run, domain_adaptation.ways
    # Without further training of the general model, and without training from scratch, which differ in flags alone.
    monkeypatch.setattr(domain_adaptation, "ways", lambda general: [ways(general)[place] for place in (0, 2, 3)])
    assert domain_adaptation.main(words) == 0
    out = tmp_path / "out"
    report = json.loads((out / "report.json").read_text())
    assert [way["steps"] for way in report["ways"]] == [0, 2, 2]
    documents = {split: set((out / f"domain-{split}.txt").read_text().strip().split("\n\n")) for split in ("train", "validation")}
    assert not documents["train"] & documents["validation"] and len(documents["validation"]) >= 2
    assert documents["train"] | documents["validation"] == set((texts / "domain.txt").read_text().split("\n\n"))
    # Sentences are split at spaces, which belong to no sentence.
    characters = sum(len(text.replace(" ", "")) for text in documents["validation"])
    assert 0 < report["held_out"]["characters"] - characters < 0.3 * characters
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    for way, line, name in zip(report["ways"], lines, ("general", "domain", "domain"), strict=True):
        tokens = TokenCache(out / f"cache-domain-by-{name}").counts("validation")["tokens"]
        expected = way["masked_loss"] * tokens / report["held_out"]["characters"]
        assert way["loss_per_character"] == pytest.approx(expected, rel=1e-12) and way["held_out_tokens"] == tokens
        assert way["way"] in line and f"{expected:.4f}" in line
    assert report["ways"][0]["rows"] == "" and report["ways"][1]["rows"].startswith("of 300 tokens ")
    assert " 0 begin with the mean" not in report["ways"][1]["rows"] and " 0 begin with the mean" in report["ways"][2]["rows"]

    # Finished commands are not repeated, except evaluations, which print here what they printed before.
    evaluated = []

    def evaluate(command, **options):
        if command[0] != sys.executable:  # a command that describes the machine
            return run_command(command, **options)
        assert command[3] == "evaluate", command
        evaluated.append(next(Path(word).name for word in command if word.startswith("--model_dir=")))
        return subprocess.CompletedProcess(command, 0, stdout=output[evaluated[-1]])

    output = {path.name.removeprefix("evaluate-").removesuffix(".txt"): path.read_text() for path in out.glob("evaluate-*.txt")}
    monkeypatch.setattr(subprocess, "run", evaluate)
    assert domain_adaptation.main(words) == 0
    assert sorted(evaluated) == sorted(name for name in output if not name.endswith(".stderr"))
    assert json.loads((out / "report.json").read_text())["ways"] == report["ways"]


def test_failed_command_is_reported_in_one_line(tmp_path):
    with pytest.raises(
        UserError, match=r"^bertfam vocab \(name\) failed with exit status 2: bertfam: error: --size=1 is too small"
    ):
        domain_adaptation.Commands(tmp_path).run(
            "name", "vocab", "--task=python_docs", "--size=1", f"--output={tmp_path / 'out'}"
        )
