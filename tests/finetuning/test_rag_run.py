"""`bertfam finetune --rag` and `bertfam predict`: from passages and questions to answers, by two vocabularies."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import linen as nn
from initial_state import skip_initialisation
from tokenizers.pre_tokenizers import ByteLevel

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.corpora.labelled.open_questions import AnswerFiles
from bertfam.data.rows.labelled.question_answers import QuestionAnswerRows, QuestionAnswers
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise_labelled
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config
from bertfam.training.trained_networks import read_network, read_networks, vocabulary_folder

CONFIG = T5Config(num_layers=1, hidden_size=32, num_heads=2, feed_forward_size=64, head_dim=16, dropout_rate=0.0)
ANSWERS = {"list": "a lot", "name": "no", "class": "it", "string": "why"}
PASSAGES = [f"the {word} is {answer}" for word, answer in ANSWERS.items()] + ["an operator", "a module of names"]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(autouse=True, scope="module")
def fast_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        skip_initialisation(patch)
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """Return the Hugging Face folder of a new T5 of bytes."""
    controls, folder = LAYOUTS["t5"], tmp_path_factory.mktemp("untrained")
    vocabulary = ByteBpe([*controls.first, *sorted(ByteLevel.alphabet()), *controls.last], [], layout=controls)
    config = CONFIG.sized(vocabulary.size)
    params = nn.unbox(jax.jit(lambda key: init_language_model(config, key))(jax.random.key(0)))
    vocabulary.save(folder / "vocab")
    extra = huggingface.special_ids(config, vocabulary)
    files = sorted((folder / "vocab").iterdir())
    huggingface.write(folder / "model", config, jax.device_get(params), tokenizer_files=files, extra=extra)
    return folder / "model"


@pytest.fixture(scope="module")
def index(random_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("passages")
    path = write_lines(folder / "passages.jsonl", [{"text": text} for text in PASSAGES])
    shutil.copytree(random_model, folder / "encoder")
    words = ["index", f"--model_dir={folder / 'encoder'}", "--pooling=mean", "--normalize", f"--input={path}", "--shard_size=4"]
    assert cli.main([*words, f"--output={folder / 'index'}"]) == 0
    return folder / "index"


@pytest.fixture(scope="module")
def tuned(generator, index, caches_in_process, tmp_path_factory):
    """Train on questions; return the folder, the words of the command and the files."""
    folder = tmp_path_factory.mktemp("rag")
    lines = [{"question": f"what is the {word}?", "answer": [answer, "never"]} for word, answer in ANSWERS.items()]
    # Each of the 2 epochs has 100 updates, because it ends with an evaluation and a checkpoint.
    train, questions = (write_lines(folder / name, lines * count) for name, count in (("train.jsonl", 100), ("dev.jsonl", 1)))
    words = ["finetune", f"--init_from={generator}", "--rag=token", f"--index={index}", f"--train={train}", "--passages=3"]
    words += [f"--validation={questions}", "--length=48", "--target_length=8", "--epochs=2", "--batch_size=4"]
    words += ["--learning_rate=5e-3", "--gin.Execution.layers='unroll'", "--gin.QUERY_LENGTH=16"]
    assert cli.main([*words, f"--model_dir={folder / 'model'}"]) == 0
    return SimpleNamespace(model_dir=folder / "model", words=words, questions=questions)


def test_run(tuned, capsys):
    assert cli.main([*tuned.words, f"--model_dir={tuned.model_dir}"]) == 0
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--rag=sequence", "--beams=2", "--passages=2"]])
def test_answers_and_their_passages(tuned, tmp_path, capsys, options):
    """Most answers that were learnt come out, by another decoding too, and are scored against the first answer."""
    out = tmp_path / "out.jsonl"
    words = [
        "predict",
        f"--model_dir={tuned.model_dir}",
        f"--input={tuned.questions}",
        "--label=answer",
        f"--output={out}",
        *options,
    ]
    assert cli.main([*words, "--batch_size=3"]) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    right = sum(line["prediction"] == answer for line, answer in zip(lines, ANSWERS.values(), strict=True))
    assert right >= (2 if options else 3)
    assert f"exact               {25 * right:.4f}" in printed
    for line in lines:
        assert len(line["passages"]) == (2 if "--passages=2" in options else 3)
        assert sum(passage["probability"] for passage in line["passages"]) == pytest.approx(1, abs=1e-5)
        assert all(PASSAGES[passage["passage"]] == passage["text"] for passage in line["passages"])
        assert np.all(np.diff([passage["probability"] for passage in line["passages"]]) <= 0)


def test_the_model_of_the_index_is_read_at_the_start_alone(tuned, index, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(tuned.model_dir, copy)
    shutil.rmtree(copy / "vocab_query")  # a folder of an earlier version, beside which the model must stay
    fingerprint = read_networks(copy)["query"].vocabulary.fingerprint
    moved = (index.parent / "encoder").rename(index.parent / "moved")
    try:
        assert cli.main(["predict", f"--model_dir={tuned.model_dir}", f"--input={tuned.questions}", "--label=answer"]) == 0
        assert float(capsys.readouterr().out.split("exact")[1].split()[0]) >= 75
        assert read_networks(tuned.model_dir)["query"].vocabulary.fingerprint == fingerprint
        with pytest.raises(UserError, match="encoder"):
            read_networks(copy)
        shutil.copytree(tuned.model_dir / "vocab_query", copy / "vocab_query")
        assert cli.main(["finetune", f"--model_dir={copy}"]) == 0
        assert "finished already" in capsys.readouterr().out
    finally:
        moved.rename(index.parent / "encoder")


def test_generate_refuses_a_generator_without_its_passages(tuned, capsys):
    assert cli.main(["generate", f"--model_dir={tuned.model_dir}", "what is the list?"]) == 2
    assert "answers questions from passages, which generate does not retrieve: use `bertfam predict" in capsys.readouterr().err


def test_export_has_two_vocabularies(tuned, random_model, tmp_path, capsys):
    assert cli.main(["export", f"--model_dir={tuned.model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    networks = read_networks(tuned.model_dir)
    for name, network in networks.items():
        read = read_network(tmp_path / "out" / name)
        assert read.vocabulary.fingerprint == network.vocabulary.fingerprint
        assert read.config.vocab_size == network.config.vocab_size == network.vocabulary.size
    assert networks["query"].vocabulary.fingerprint == read_network(random_model).vocabulary.fingerprint
    assert networks["query"].vocabulary.size != networks["encoder_decoder"].vocabulary.size
    before, after = read_network(random_model).params["encoder"], networks["query"].params["encoder"]
    changes = jax.tree.map(lambda left, right: float(np.abs(np.asarray(left) - np.asarray(right)).max()), before, after)
    assert max(jax.tree.leaves(changes)) > 1e-4  # the question encoder learnt


def test_rows(random_model, generator, tmp_path):
    """A question in the tokens of both vocabularies, cut for its encoder, and the first answer."""
    line = {"question": "what is the name of a class?", "answer": ["no", "never"]}
    path = write_lines(tmp_path / "a.jsonl", [line, {"question": "why?", "answer": "so"}])
    corpus = AnswerFiles((str(path),), question_vocabulary=str(vocabulary_folder(random_model)), question_tokens=8)
    block = tokenise_labelled(vocabularies.load(generator), list(corpus.read(path)))
    starts, words = np.concatenate([[0], np.cumsum(block.sentences)]), vocabularies.load(generator)
    documents = Documents("text", block.tokens, starts, np.array([0, 2, 4]), labels=block.labels, label_count=8)
    layout = QuestionAnswers(corpus.question_vocabulary, question_length=8, target_tokens=6)
    examples = layout.examples(documents, 40, 0, words.token_ids)
    rows = examples.rows(np.array([0, 1]), np.zeros(2, np.uint64))
    asked_of, targets = (
        [words.decode(row[own > 0].tolist()) for row, own in zip(rows[name], rows[real], strict=True)]
        for name, real in (("encoder_input_tokens", "encoder_segment_ids"), ("decoder_target_tokens", "decoder_loss_weights"))
    )
    assert asked_of == [" // what is the name of a class?</s>", " // why?</s>"]
    assert targets == ["no</s>", "so</s>"]
    asked, own = vocabularies.load(corpus.question_vocabulary), rows["question_input_tokens"]
    whole = asked.encode_prompt(line["question"], frame=True).ids
    assert len(whole) > 8 and own[0].tolist() == [*whole[:7], whole[-1]] and examples.cut == 1
    assert own[1][rows["question_segment_ids"][1] > 0].tolist() == asked.encode_prompt("why?", frame=True).ids.tolist()
    assert rows.keys() == QuestionAnswerRows(8, 6).features(RowShape(40, 0, 1, 6)).keys()
    assert ["--gin.QUERY_LENGTH" in line for line in examples.warnings] == [True]
