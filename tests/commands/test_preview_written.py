"""`bertfam preview` of rows for decoders: what is read and written, and shares counted again from the features."""

import json

import numpy as np
import pytest

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.wordpiece import WordPiece

KINDS = {
    "t5": ["--gin.TextData.rows=@Chunks()", "--gin.Chunks.separated=False", "--gin.TextData.corruption=@SpanCorruption()"],
    "next tokens": ["--gin.TextData.rows=@Packed()", "--gin.TextData.corruption=@NextTokens()"],
}


@pytest.fixture(scope="module")
def cached(corpus, tmp_path_factory):
    """A token cache with a vocabulary of T5's control tokens."""
    folder = tmp_path_factory.mktemp("written")
    documents = [sentences for sentences, _ in zip(corpus.documents("train"), range(40), strict=False)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(sentences) for sentences in documents) + "\n")
    vocabulary = WordPiece.train((line for lines in documents for line in lines), size=600, layout=LAYOUTS["t5"])
    vocabulary.save(folder / "vocab")
    words = [f"--input={folder / 'text.txt'}", f"--vocab={folder / 'vocab'}", f"--output={folder / 'cache'}"]
    assert cli.main(["cache", *words]) == 0
    return folder / "cache"


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_targets_are_shown(cached, capsys, tmp_path, kind):
    words = ["preview", f"--cache_dir={cached}", "--length=48", "--examples=12", *KINDS[kind]]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--stat_rows=12"]) == 0
    lines = capsys.readouterr().out.splitlines()
    vocabulary = vocabularies.load(cached / "vocab")
    ids = vocabulary.token_ids
    assert len(records) == 12
    shown, targets, inputs, marks = [], 0, 0, 0
    for number, record in enumerate(records):
        features = {name: np.array(value) for name, value in record["features"].items()}
        parts = [part for part in ("encoder", "decoder") if f"{part}_segment_ids" in features]
        assert record["padding"] == {part: int((features[f"{part}_segment_ids"] == 0).sum()) for part in parts}
        padding = " and ".join(f"{count} of the {part}" for part, count in record["padding"].items())
        many = len(record["examples"])
        assert many == features["decoder_segment_ids"].max()
        shown.append(f"row {number}: {many} example{'s' * (many > 1)}, padding {padding}")
        for example in record["examples"]:
            here = features["decoder_segment_ids"] == example["segment"]
            assert example["targets"] == vocabulary.pieces(features["decoder_target_tokens"][here])
            assert example["decoder_inputs"][1:] == example["targets"][:-1] and example["weights"] == [1.0] * here.sum()
            read = example["decoder_inputs"]
            if kind == "t5":
                tokens = features["encoder_input_tokens"][features["encoder_segment_ids"] == 1]
                read = vocabulary.pieces(tokens)
                assert example["inputs"] == read and example["decoder_inputs"][0] == "<pad>"
                assert example["targets"][0] == "<extra_id_0>" and read[-1] == example["targets"][-1] == "</s>"
                inputs, marks = inputs + len(tokens), marks + int(np.isin(tokens, ids.sentinels).sum())
            else:
                assert example["inputs"] is None and example["input_text"] is None
            count = f"{len(read)} inputs, " if kind == "t5" else ""
            shown.append(f"  example {example['segment']}: {count}{len(example['targets'])} targets")
            shown += [f"    inputs  {' '.join(read)}"] + ["    start   <pad>"] * (kind == "t5")
            shown.append(f"    targets {' '.join(example['targets'])}")
            targets += len(example["targets"])
    assert lines[: len(shown)] == shown
    places = np.size([record["features"]["decoder_target_tokens"] for record in records])
    shares = dict(zip(*[iter(lines[len(shown) + 2].split())] * 2, strict=True))
    expected = {"real_targets": targets / places, "weighted": 1.0}
    if kind == "t5":
        expected |= {"real_inputs": inputs / (12 * 48), "noise_marks": marks / inputs}
        assert lines[len(shown) + 1] == "12 rows of 48 inputs and 12 targets:" and 0.03 < marks / inputs < 0.09
    assert {name: shares[name] for name in expected} == {name: f"{value:.1%}" for name, value in expected.items()}
    page = tmp_path / "rows.html"
    assert cli.main([*words, f"--html={page}"]) == 0
    html = page.read_text()
    assert html.count("<article") == sum(len(record["examples"]) for record in records)
    assert html.count(">targets</span>") == html.count("<article") and "real targets" in html


def test_rows_with_more_spans_than_sentinels_are_refused(cached, capsys):
    words = ["preview", f"--cache_dir={cached}", "--length=2048", *KINDS["t5"]]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "may need 114 sentinels, and the vocabulary has 100: use rows of at most 1809" in error and error.count("\n") == 1


def test_targets_before_the_first_sentinel_are_counted_and_noted(cached, capsys, tmp_path):
    """As published, in rows that begin with noise; the aligned form has none."""
    noise = ["--gin.SpanCorruption.noise=@RandomTokens()", "--gin.SpanCorruption.targets=@ClearToSentinels()"]
    words = ["preview", f"--cache_dir={cached}", "--length=48", "--examples=60", *KINDS["t5"], *noise]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    first = [record["examples"][0]["targets"][0] for record in records]
    count = sum(not piece.startswith("<extra_id_") for piece in first)
    assert cli.main([*words, "--stat_rows=60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert count and any(line.endswith(f", {count} rows with targets before the first sentinel") for line in lines)
    assert lines[-1].startswith("note: ") and "ClearToSentinels.aligned = True" in lines[-1]
    assert cli.main([*words, f"--html={tmp_path / 'rows.html'}"]) == 0
    assert "ClearToSentinels.aligned = True" in (tmp_path / "rows.html").read_text()
    capsys.readouterr()
    assert cli.main([*words, "--gin.ClearToSentinels.aligned=True"]) == 0
    out = capsys.readouterr().out
    assert "note: " not in out and "before the first sentinel" not in out
