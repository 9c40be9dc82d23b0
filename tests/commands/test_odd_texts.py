"""Texts that have broken tokenisers, samplers of pairs and noise elsewhere, through the command line."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bertfam import cli
from bertfam.corruption.keys import fold
from bertfam.corruption.t5.span_corruption import SpanCorruption
from bertfam.data import vocabularies
from bertfam.data.rows.running_text import WholeDocuments
from bertfam.data.token_cache.cache import TokenCache


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    words = "hello tom sawyer how are you istanbul isparta use to fill every line of text".split()
    (folder / "text.txt").write_text("\n".join(" ".join(words[number % 7 :] + words[: number % 5]) for number in range(40)))
    assert cli.main(["vocab", f"--input={folder / 'text.txt'}", "--size=120", f"--output={folder / 'vocab'}"]) == 0
    return folder / "vocab"


TEXTS = {
    "one document of three lines": "hello\ntom sawyer\nhow are you\n",
    "a hundred documents of a line": "\n\n".join(f"hello tom {number}" for number in range(100)),
    "a blank line after every line": "".join(f"how are you {number}\n\n" for number in range(60)),
    "two documents": "hello tom\nhow are you\nuse every line\n\nsawyer of text\nto fill\nhow are you\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_pairs_of_few_documents_or_sentences(vocab, tmp_path, capsys, name):
    (tmp_path / "text.txt").write_text(TEXTS[name])
    flags = [f"--input={tmp_path / 'text.txt'}", f"--vocab={vocab}", "--gin.TextFiles.validation_fraction=0.0"]
    if name == "one document of three lines":
        assert cli.main(["cache", *flags, f"--output={tmp_path / 'cache'}"]) == 2 and not (tmp_path / "cache").exists()
        assert "has 1 training document and its rows need at least 2" in capsys.readouterr().err
        return
    assert cli.main(["preview", *flags, "--length=24", "--examples=20", "--json"]) == 0
    out, err = capsys.readouterr()
    records = json.loads(out)
    kinds = [record["next_sentence"] for record in records]
    if name == "two documents":
        assert set(kinds) == {"next", "random"}
    else:
        assert set(kinds) == {"random"} and "100% of the sentence pairs" in err
    documents = [[line for line in text.splitlines() if line] for text in TEXTS[name].split("\n\n")]
    owner = {word: number for number, text in enumerate(documents) for line in text for word in line.split() if word.isdigit()}
    for record in records:
        numbers = [owner[word] for word in " ".join(record["original"]).replace(" ##", "").split() if word in owner]
        assert len(set(numbers)) == len(numbers)  # B is never of A's own document


def test_control_tokens_typed_in_the_text_survive_noise(tmp_path):
    """The literals are ordinary pieces, and inputs and targets give the text back."""
    typed = "use <pad> to fill </s> every <extra_id_3> line of <unk> text"
    (tmp_path / "text.txt").write_text("\n\n".join([typed, *(f"every line of text {number} to fill" for number in range(50))]))
    flags = [f"--input={tmp_path / 'text.txt'}"]
    assert cli.main(["vocab", *flags, "--kind=unigram", "--layout=t5", "--size=180", f"--output={tmp_path / 'vocab'}"]) == 0
    flags += [f"--vocab={tmp_path / 'vocab'}", "--gin.TextFiles.validation_fraction=0.0", f"--output={tmp_path / 'cache'}"]
    assert cli.main(["cache", *flags]) == 0
    tokens = vocabularies.load(tmp_path / "vocab").token_ids
    documents = TokenCache(tmp_path / "cache").documents("train", "text")
    control = [id for id in (*tokens.special, *tokens.sentinels) if id != tokens.unk]
    assert not np.isin(documents.tokens, control).any()
    rows = WholeDocuments().examples(documents, 64, 0, tokens)
    raw = rows.rows(np.arange(len(rows)), np.zeros(len(rows), np.uint64))
    lengths = raw["encoder_segment_ids"].sum(axis=1)
    made = SpanCorruption().corrupt(raw, fold(0, np.arange(len(rows))), tokens)
    for row in range(len(rows)):
        spans, current = {}, None
        for id in made["decoder_target_tokens"][row, made["decoder_segment_ids"][row] > 0].tolist():
            if id in tokens.sentinels:
                current = spans.setdefault(id, [])
            elif id != tokens.eos:
                current.append(id)
        inputs = made["encoder_input_tokens"][row, made["encoder_segment_ids"][row] > 0].tolist()
        back = [found for id in inputs if id != tokens.eos for found in (spans[id] if id in spans else [id])]
        assert back == raw["encoder_input_tokens"][row, : lengths[row]].tolist()


@pytest.mark.parametrize("language", ["C", "tr_TR.UTF-8"])
def test_the_dotted_capital_i_under_any_locale(vocab, language):
    command = [sys.executable, "-m", "bertfam", "encode", f"--vocab={vocab}", "--json", "İstanbul ISPARTA"]
    environment = os.environ | {"LANG": language, "LC_ALL": language, "PYTHONUTF8": "1"}
    found = json.loads(subprocess.run(command, capture_output=True, text=True, env=environment, encoding="utf-8").stdout)
    words = "".join(piece if piece.startswith("##") else " " + piece for piece in found["pieces"]).replace("##", "").split()
    assert words == ["istanbul", "isparta"]
    begins = [start for piece, (start, _) in zip(found["pieces"], found["offsets"], strict=True) if not piece.startswith("##")]
    assert begins == [0, 9] and found["offsets"][-1][1] == 16
