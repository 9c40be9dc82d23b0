"""Predictions of the fine-tuned models of Hugging Face folders, against transformers on the same folder."""

import json
import re
import warnings

import numpy as np
import pytest

import bertfam
from bertfam import cli
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece
from bertfam.errors import UserError
from bertfam.finetuning.published import has_classifier, open_published

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["a bad cab", "in a bed", "a cab in a bed, a bad cab", "bed"]
PAIRS = [("a cab", "in a bed"), ("a bad bed in a bad cab", "bed"), ("cab", "a cab in a bed, a bed in a cab")]
NAMES = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
SEVERAL = {"problem_type": "multi_label_classification"}
SIZES = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.4}
ENCODER = {**SIZES, "max_position_embeddings": 80}
DECODER = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 80, "initializer_range": 0.4}
T5 = {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_kv": 4, "d_ff": 24, "initializer_factor": 2.0}
BART = {f"{stack}_{size}": count for stack in ("encoder", "decoder") for size, count in (("layers", 2), ("ffn_dim", 24))}
BART |= {
    "d_model": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 80,
    "init_std": 0.4,
}
# Class, sizes, labels and texts; classes of pairs, too, where token types tell them apart.
CASES = {
    "BertForSequenceClassification": (ENCODER, NAMES, PAIRS),
    "RobertaForSequenceClassification": (ENCODER, NAMES | SEVERAL, PAIRS),
    "ModernBertForSequenceClassification": (ENCODER, {"num_labels": 1}, TEXTS),
    "GPT2ForSequenceClassification": (DECODER, {}, TEXTS),
    "T5ForSequenceClassification": (T5, NAMES, TEXTS),
    "BartForSequenceClassification": (BART, NAMES, TEXTS[:1]),  # its class requires as many </s> in all rows
}


@pytest.fixture(scope="module")
def vocabularies():
    """Return vocabularies by the first letters of the classes that read them."""
    texts = [*TEXTS * 4, *sum(PAIRS, ())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        sentence_piece = SentencePiece.train(texts, size=125, layout=LAYOUTS["t5"])
    byte_level = {name: ByteBpe.train(texts, size=265, layout=LAYOUTS[name]) for name in ("roberta", "gpt2")}
    return {"T5": sentence_piece, "GPT2": byte_level["gpt2"], "Roberta": byte_level["roberta"], "Bart": byte_level["roberta"]}


def write(folder, name, vocabulary, sizes, labels):
    """Write a folder by transformers; return its model."""
    cls = getattr(transformers, name)
    tokens = vocabulary.token_ids
    ids = {"pad_token_id": tokens.pad if tokens.pad is not None else tokens.eos}
    ids |= {"eos_token_id": tokens.eos if tokens.eos is not None else tokens.sep}
    ids |= {} if name.startswith("T5") else {"bos_token_id": tokens.cls if tokens.cls is not None else ids["eos_token_id"]}
    ids |= {"decoder_start_token_id": tokens.pad if name.startswith("T5") else ids["eos_token_id"]} if name[:2] in "T5Ba" else {}
    ids |= {"cls_token_id": tokens.cls, "sep_token_id": tokens.sep} if name.startswith("Modern") else {}
    torch.manual_seed(0)
    config = cls.config_class(vocab_size=vocabulary.size, **sizes, **labels, **ids)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 would hide one that is not read
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    vocabulary.save(folder)
    return model


def theirs(folder, model, texts):
    """Return the outputs of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    parts = [list(texts)] if isinstance(texts[0], str) else list(map(list, zip(*texts, strict=True)))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    rows = tokenizer(*parts, return_tensors="pt", padding=True)
    with torch.no_grad():
        return model(**rows).logits.numpy()


@pytest.mark.parametrize("name", CASES)
def test_outputs_match_transformers(name, vocabularies, vocabulary, tmp_path):
    sizes, labels, texts = CASES[name]
    own = next((found for start, found in vocabularies.items() if name.startswith(start)), vocabulary)
    expected = theirs(tmp_path, write(tmp_path, name, own, sizes, labels), texts)
    loaded = bertfam.load(tmp_path)
    outputs = loaded.predictor.outputs([(text,) if isinstance(text, str) else text for text in texts])
    assert len(texts) == 1 or np.ptp(expected, axis=0).min() > 1e-2
    np.testing.assert_allclose(outputs, expected, atol=1e-4)

    classes = list(NAMES["id2label"].values()) if "id2label" in labels else ["LABEL_0", "LABEL_1"]
    predicted = loaded.predict(texts)
    if labels.get("problem_type"):
        assert predicted == [[one for one, output in zip(classes, row, strict=True) if output > 0] for row in expected]
    elif labels.get("num_labels") == 1:
        np.testing.assert_allclose(predicted, expected[:, 0], atol=1e-4)
    else:
        assert predicted == [classes[index] for index in expected.argmax(axis=1)]


def test_tags_match_transformers_at_the_first_piece_of_each_word(vocabulary, tmp_path, capsys):
    model = write(tmp_path / "tagger", "BertForTokenClassification", vocabulary, ENCODER, NAMES)
    sentences = [text.split() for text in TEXTS]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tagger")
    rows = tokenizer(sentences, is_split_into_words=True, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = model(**rows).logits.numpy()
    loaded, expected = bertfam.load(tmp_path / "tagger"), []
    for row, (own, outputs) in enumerate(zip(sentences, loaded.predictor.word_outputs(sentences), strict=True)):
        first = [rows.word_ids(row).index(word) for word in range(len(own))]
        np.testing.assert_allclose(outputs, logits[row, first], atol=1e-4)
        expected.append([NAMES["id2label"][index] for index in logits[row, first].argmax(axis=1)])
    assert loaded.predict(sentences) == expected

    path, output = tmp_path / "words.conll", tmp_path / "tags.conll"
    path.write_text("\n\n".join("\n".join(f"{word} bad" for word in own) for own in sentences) + "\n")
    words = ["predict", f"--model_dir={tmp_path / 'tagger'}", f"--input={path}", f"--output={output}"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"wrote {output}: 4 predictions\n"
    tags = [[line.split()[-1] for line in own.split("\n")] for own in output.read_text().strip().split("\n\n")]
    assert tags == expected


def test_answers_match_transformers(vocabulary, tmp_path):
    model = write(tmp_path, "DistilBertForQuestionAnswering", vocabulary, {"n_layers": 2, "dim": 16, "n_heads": 2}, {})
    tokenizer, loaded = transformers.AutoTokenizer.from_pretrained(tmp_path), bertfam.load(tmp_path)
    for (question, context), answer in zip(PAIRS, loaded.predict(PAIRS), strict=True):
        rows = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = rows.pop("offset_mapping")[0].numpy()
        with torch.no_grad():
            found = model(**{name: rows[name] for name in ("input_ids", "attention_mask")})
        places = [place for place, part in enumerate(rows.sequence_ids()) if part == 1]
        start, end = found.start_logits[0].numpy(), found.end_logits[0].numpy()
        first, last = max(((a, b) for a in places for b in places if a <= b), key=lambda span: start[span[0]] + end[span[1]])
        assert answer == context[offsets[first][0] : offsets[last][1]]

    # Such a folder does not say that questions may have no answer; the flag does.
    entry = {"context": PAIRS[0][1], "qas": [{"id": "1", "question": PAIRS[0][0]}]}
    path, output = tmp_path / "questions.json", tmp_path / "answers.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [entry]}]}))
    words = ["predict", f"--model_dir={tmp_path}", f"--input={path}", f"--output={output}"]
    for flags, expected in (((), loaded.predict(PAIRS[:1])[0]), (("--no_answer_threshold=-1000",), "")):
        output.unlink(missing_ok=True)
        assert cli.main([*words, *flags]) == 0
        assert json.loads(output.read_text()) == {"1": expected}


def test_command_predicts_with_a_folder_of_transformers(vocabulary, tmp_path, capsys):
    folder, path, output = tmp_path / "classifier", tmp_path / "new.tsv", tmp_path / "predictions.jsonl"
    expected = theirs(folder, write(folder, "BertForSequenceClassification", vocabulary, ENCODER, NAMES), PAIRS)
    shares = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    labels = ["bad", "fair", "good"]
    path.write_text("text\tother\tlabel\n" + "".join(f"{one}\t{other}\t{labels[0]}\n" for one, other in PAIRS))
    words = ["predict", f"--model_dir={folder}", f"--input={path}", "--text_pair=other"]
    assert cli.main([*words, f"--output={output}", "--probabilities"]) == 0
    assert "wrote" in capsys.readouterr().out
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["prediction"] for record in records] == [labels[index] for index in expected.argmax(axis=1)]
    assert cli.main([*words, "--label=label", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["texts"] == 3 and scores["step"] is None
    assert scores["accuracy"] == pytest.approx(np.mean(expected.argmax(axis=1) == 0))
    probabilities = bertfam.load(folder).probabilities(PAIRS)
    np.testing.assert_allclose([[row[name] for name in labels] for row in probabilities], shares, atol=1e-4)
    assert cli.main([*words, "--label=label", "--step=3"]) == 2
    assert "is a Hugging Face folder, which has one set of parameters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id2label": {"0": "bad", "2": "good", "1": 3}}, "id2label is"),
        ({"id2label": {"0": "bad", "1": "fair", "2": "bad"}}, "Classification.classes has 'bad' twice"),
        ({"id2label": {"0": "bad", "1": "good"}}, r"classifier.weight has shape \(3, 16\), and config.json asks for \(2, 16\)"),
        ({"problem_type": "regression"}, "problem_type is 'regression' of 3 outputs"),
    ],
)
def test_labels_that_do_not_fit_are_named_and_the_encoder_is_loaded(change, problem, vocabulary, tmp_path, capsys):
    write(tmp_path, "BertForSequenceClassification", vocabulary, ENCODER, NAMES)
    content = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=problem):
        open_published(tmp_path)
    capsys.readouterr()
    loaded = bertfam.load(tmp_path)
    assert re.search(f"{problem}.*: the model is loaded without predict", capsys.readouterr().err)
    assert not hasattr(loaded, "predict") and loaded.embed(TEXTS).shape == (4, 16)


def test_a_pretrained_folder_has_no_classifier(random_model, tmp_path, capsys):
    assert not has_classifier(random_model)
    path = tmp_path / "new.tsv"
    path.write_text("text\na cab\n")
    assert cli.main(["predict", f"--model_dir={random_model}", f"--input={path}", "--label=text"]) == 2
    error = capsys.readouterr().err
    assert "has no classifier" in error and f"--init_from={random_model}" in error and error.count("\n") == 1
