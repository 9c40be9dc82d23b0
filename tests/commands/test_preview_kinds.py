"""`bertfam preview` of every kind of rows: what it shows and counts against a recount from the features that it prints."""

import html
import json
import re
from collections import Counter

import numpy as np
import pytest
from command_line import in_process

from bertfam import cli
from bertfam.data import vocabularies

KINDS = {
    "SentencePairs": [],
    "FullSentences": ["--gin.TextData.rows=@FullSentences()"],
    "DocSentences": ["--gin.TextData.rows=@DocSentences()"],
    "Chunks": ["--gin.TextData.rows=@Chunks()"],
    "WholeDocuments": ["--gin.TextData.rows=@WholeDocuments()"],
    "DocumentWindows": ["--gin.TextData.rows=@DocumentWindows()", "--gin.BertMasking.choice=@WholeWords()"],
    "packed documents": ["--gin.TextData.rows=@Packed()"],
    "packed sentences": ["--gin.TextData.rows=@Packed()", "--gin.Packed.rows=@DocSentences()"],
    "packed pairs": ["--gin.TextData.rows=@Packed()", "--gin.Packed.rows=@SentencePairs()"],
}


@pytest.fixture(scope="module")
def cached(trained, tmp_path_factory):
    """The folder of a token cache of many short documents, some of their characters unknown to the vocabulary."""
    folder = tmp_path_factory.mktemp("kinds")
    lines = [line for line in (trained.folder / "text/train.txt").read_text().splitlines() if line]
    documents = ["\n".join(lines[first : first + 1 + first % 5]) + "\n∰∰" * (first % 3 == 0) for first in range(0, 400, 4)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    words = [f"--input={folder / 'text.txt'}", f"--vocab={trained.folder / 'vocab'}", f"--output={folder / 'cache'}"]
    assert cli.main(["cache", *words]) == 0
    return folder / "cache"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_statistics_are_those_of_the_features(cached, capsys, kind):
    words = ["preview", f"--cache_dir={cached}", "--length=40", "--step=1", "--examples=30", *KINDS[kind]]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--stat_rows=30"]) == 0
    output = capsys.readouterr().out
    vocabulary = vocabularies.load(cached / "vocab")
    tokens, unknown, predicted, random_next, lengths = 0, 0, Counter(), [], []
    for record in records:
        features = record["features"]
        ids = list(features["encoder_input_tokens"])
        used = zip(features["masked_positions"], features["masked_target_tokens"], features["masked_loss_weights"], strict=True)
        for position, target, weight in used:
            if weight:
                seen = ids[position]
                predicted["kept" if seen == target else "masked" if seen == vocabulary.token_ids.mask else "random"] += 1
                ids[position] = target
        segments = features["encoder_segment_ids"]
        real = [token for token, segment in zip(ids, segments, strict=True) if segment]
        assert record["original"] == vocabulary.pieces(real) and record["padding"] == 40 - len(real)
        tokens += len(real)
        unknown += real.count(vocabulary.token_ids.unk)
        assert [example["segment"] for example in record["examples"]] == sorted(set(segments) - {0})
        for number, example in enumerate(record["examples"]):
            begin, end = example["begin"], example["end"]
            assert {segments[place] for place in range(begin, end)} == {example["segment"]}
            assert record["original"][begin] == "[CLS]" and record["original"][end - 1] == "[SEP]"
            assert example["text"] == vocabulary.decode(ids[begin:end], skip_special=True)
            lengths.append(end - begin)
            if "pairs" in kind.lower():
                label = features["next_sentence_labels"][number]
                assert example["next_sentence"] == ("next", "random")[label]
                random_next.append(label)
            else:
                assert example["next_sentence"] is None
        for found in record["predictions"]:
            assert segments[found["position"]] == found["segment"]
    assert max(len(record["examples"]) for record in records) > 1 or not kind.startswith("packed")
    assert len(re.findall("^  example", output, re.MULTILINE)) == len(lengths)
    count = predicted.total()
    expected = {"real_tokens": tokens / (30 * 40), "unknown": unknown / tokens, "predicted": count / tokens}
    expected |= {name: predicted[name] / count for name in ("masked", "random", "kept")}
    expected |= {"next_sentence_random": sum(random_next) / len(random_next)} if random_next else {}
    assert unknown > 0
    assert "\n  " + "  ".join(f"{name} {value:.1%}" for name, value in expected.items()) + "\n" in output
    assert f"\n  {len(lengths) / 30:.2f} examples a row, " in output
    bars = re.findall(r"^ +(\d+)- *(\d+) (#*) +([\d.]+%)$", output, re.MULTILINE)
    assert [int(bar[0]) for bar in bars] == list(range(1, 41, 4))
    for low, high, bar, share in bars:
        inside = sum(int(low) <= length <= int(high) for length in lengths)
        assert share == f"{inside / len(lengths):.1%}" and bool(bar) == bool(inside)


SHOWN = {
    "structbert": ["--gin.SentencePairs.relation='structure'", "--gin.BertMasking.shuffling=@ShuffledWindows()"],
    "spanbert": [
        *("--gin.TextData.rows=@DocSentences()", "--gin.BertMasking.choice=@WordSpans()", "--gin.BertMasking.drawn_by='unit'"),
        *("--gin.BertMasking.boundaries=True", "--gin.BertMasking.random_tokens='text'"),
    ],
}


@pytest.mark.parametrize("family", SHOWN)
def test_shuffled_windows_and_spans_are_shown(cached, capsys, family):
    words = ["preview", f"--cache_dir={cached}", "--length=40", "--examples=30", *SHOWN[family]]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--stat_rows=30"]) == 0
    output = capsys.readouterr().out
    of_features = "span_loss_weights" if family == "spanbert" else "shuffled_loss_weights"
    count = sum(sum(record["features"][of_features]) for record in records)
    share = count / sum(len(record["predictions"]) for record in records)
    shuffled = [found for record in records for found in record["predictions"] if found["kind"] == "shuffled"]
    assert count > 10 and f"  {'bounded' if family == 'spanbert' else 'shuffled'} {share:.1%}" in output
    assert len(shuffled) == (count if family == "structbert" else 0)
    assert output.count("~") == len(shuffled) + 2 * bool(shuffled)  # two in the legend
    for found in shuffled:
        assert f"{{{found['original']}~{found['input']}}}" in output
    labels = {example["next_sentence"] for record in records for example in record["examples"]}
    assert labels - {None} == (set() if family == "spanbert" else {"random", "next", "previous"})


def test_rows_for_retrieval_are_queries_and_passages(cached, tmp_path, capsys):
    noise = [
        "--gin.TextData.rows=@ClozeBlocks()",
        "--gin.TextData.corruption=@InverseCloze()",
        "--gin.InverseCloze.query_length=12",
    ]
    words = ["preview", f"--cache_dir={cached}", "--length=48", "--examples=3", *noise]
    assert cli.main([*words, "--json", f"--html={tmp_path / 'rows.html'}"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    page = (tmp_path / "rows.html").read_text()
    for number, record in enumerate(records):
        assert [example["role"] for example in record["examples"]] == ["query", "passage"]
        sizes = [example["end"] - example["begin"] for example in record["examples"]]
        summary = f"1 query and 1 passage, {sum(sizes)} tokens, {48 - sum(sizes)} padding"
        start = lines.index(f"row {number}: {summary}")
        assert lines[start + 1] == f"  example 1: query, {sizes[0]} tokens" and summary in page
        assert lines[start + 3] == f"  example 2: passage, {sizes[1]} tokens"
    assert not any("predicted" in line for line in lines) and "among the passages of the whole batch" in page


def test_statistics_are_of_one_epoch_at_most(cached, capsys):
    assert cli.main(["preview", f"--cache_dir={cached}", "--length=400", "--examples=1", "--stat_rows=100000"]) == 0
    rows, epoch = re.search(
        r"^([\d,]+) rows of 400 tokens:\n.*\n.* ([\d,]+) rows an epoch", capsys.readouterr().out, re.M
    ).groups()
    assert rows == epoch


@pytest.mark.parametrize(("flag", "share"), [("--gin.BertMasking.rate=0.4", 0.4), ("--gin.BertMasking.rate=0.05", 0.05)])
def test_bindings_hold_without_a_run_file(cached, capsys, flag, share):
    assert cli.main(["preview", f"--cache_dir={cached}", "--length=64", "--examples=40", "--json", flag]) == 0
    records = json.loads(capsys.readouterr().out)
    predicted = sum(len(record["predictions"]) for record in records) / sum(64 - record["padding"] for record in records)
    assert abs(predicted - share) < 0.03


def test_rows_of_a_mixture_name_their_corpus(trained, tmp_path):
    """Without a run, a file that says what TextData is is all that is asked for."""
    documents = (trained.folder / "text/train.txt").read_text().split("\n\n")
    (tmp_path / "a.txt").write_text("\n\n".join(documents[:12]))
    (tmp_path / "b.txt").write_text("zebra\n\n" * 2000)
    (tmp_path / "mixed.gin").write_text(f"""
TextData.corpus = @Mixture()
TextData.rows = @Chunks()
Mixture.corpora = (@topics/TextFiles(), @zebras/TextFiles())
Mixture.names = ("topics", "zebras")
Mixture.rates = (3, 1)
topics/TextFiles.train = ("{tmp_path}/a.txt",)
zebras/TextFiles.train = ("{tmp_path}/b.txt",)
""")
    words = [f"--gin_file={tmp_path / 'mixed.gin'}", "--length=32", f"--vocab={trained.folder / 'vocab'}"]
    assert cli.main(["cache", words[0], words[2], f"--output={tmp_path / 'cache'}"]) == 0
    words.append(f"--cache_dir={tmp_path / 'cache'}")
    done = in_process("preview", *words, "--json", "--examples=40")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert Counter(record["corpus"] for record in records) == {"topics": 30, "zebras": 10}
    for record in records:
        assert (record["corpus"] == "zebras") == ("".join(record["original"]).replace("##", "").count("zebra") > 2)
    done = in_process("preview", *words, "--examples=4", "--stat_rows=100")
    assert done.stderr == "" and "\n  from topics 75.0%  zebras 25.0%\n" in done.stdout
    found = re.findall("^row .* from (.*)$", done.stdout, re.MULTILINE)
    assert found == [record["corpus"] for record in records[:4]]


def test_pairs_without_a_label_are_counted(cached, capsys):
    words = ["preview", f"--cache_dir={cached}", "--length=40", "--examples=100", "--gin.SentencePairs.relation='order'"]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--stat_rows=100"]) == 0
    shown = capsys.readouterr()
    count = sum(record["features"]["sentence_order_weights"] == [0.0] for record in records)
    assert count and f", {count} pairs without a label\n" in shown.out
    assert [record["next_sentence"] for record in records].count(None) == count
    assert re.search(r"warning: [\d,]+ of the [\d,]+ sentence pairs of .* at length 40 .* have no label", shown.err)
    assert cli.main([*words, "--gin.SentencePairs.label_single_sentences=True"]) == 0
    assert "without a label" not in capsys.readouterr().out


def test_permuted_rows(cached, capsys):
    """The order of a row's predictions is that of their ranks, and the text of reversed rows is shown forwards."""
    words = ["preview", f"--cache_dir={cached}", "--length=40", "--examples=30", "--gin.TextData.corruption=@PermutationNoise()"]
    words += ["--gin.TextData.rows=@RecurrentPairs()"]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {tuple(record["features"]["encoder_reversed"]) for record in records} == {(0,), (1,)}
    vocabulary = vocabularies.load(cached / "vocab")
    for record in records:
        features = record["features"]
        ids, ranks = features["encoder_input_tokens"], features["encoder_ranks"]
        assert record["pieces"] == record["original"] == vocabulary.pieces(ids) and record["padding"] == 0
        predicted = sorted(record["predictions"], key=lambda found: ranks[found["position"]])
        assert [found["order"] for found in predicted] == list(range(1, len(predicted) + 1)) and predicted
        assert {found["kind"] for found in predicted} == {"permuted"}
        (example,) = record["examples"]
        order = -1 if features["encoder_reversed"] == [1] else 1
        assert example["text"] == vocabulary.decode(ids[::order], skip_special=True)
    assert cli.main(words) == 0
    output = capsys.readouterr().out
    assert re.search(r"\{\S+@1\}", output) and "permuted 100.0%" in output and "note: " in output


def test_pairs_of_words(cached, capsys, tmp_path):
    """Each pair is shown with the word that is predicted, in the terminal and on a page; the text has no noise."""
    words = ["preview", f"--cache_dir={cached}", "--length=40", "--examples=10", "--gin.TextData.rows=@FullSentences()"]
    words += ["--gin.TextData.corruption=@SkipGrams()", "--gin.SkipGrams.threshold=0.0"]
    assert cli.main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    vocabulary = vocabularies.load(cached / "vocab")
    pairs = []
    for record in records:
        features = record["features"]
        assert record["pieces"] == record["original"]
        targets = np.asarray(features["masked_target_tokens"])[np.asarray(features["masked_loss_weights"]) > 0]
        assert [found["original"] for found in record["predictions"]] == vocabulary.pieces(targets)
        assert all(found["input"] == record["pieces"][found["position"]] for found in record["predictions"])
        assert all(found["kind"] == "paired" for found in record["predictions"])
        if others := [found["original"] for found in record["predictions"] if found["position"] == 0]:
            pairs.append((record["pieces"][0], others))
    assert pairs
    assert cli.main([*words, f"--html={tmp_path / 'rows.html'}"]) == 0
    capsys.readouterr()
    assert cli.main(words) == 0
    output, page = capsys.readouterr().out, (tmp_path / "rows.html").read_text()
    assert "paired 100.0%" in output and "row 9" in output
    for word, others in pairs:
        assert f"{{{word}:{' '.join(others)}}}" in output and html.escape(" ".join(others)) in page
