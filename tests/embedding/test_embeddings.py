"""Embeddings of texts: pooling by hand and by transformers, the settings of a folder, and the command from file to file."""

import json
import shutil

import numpy as np
import pytest
from pyarrow import parquet

import bertfam
from bertfam import cli
from bertfam.commands import embed as command
from bertfam.embedding.embedder import Embedder
from bertfam.errors import UserError

TEXTS = [
    "A class definition defines a class object.",
    "",
    "The return statement leaves the current function call with the expression list, or None, as its return value.",
    "Return it.",
    " ".join(["Assignment statements bind names to values."] * 20),
]
LENGTH = 64  # of the model's longest rows


@pytest.fixture(scope="module")
def model(random_model):
    return bertfam.load(random_model)


@pytest.fixture(scope="module")
def rows(model):
    """Return the rows of the texts, cut by hand: tokens and bool[texts, length], True for tokens."""
    ids = model.vocabulary.token_ids
    texts = [np.array([ids.cls, *tokens[: LENGTH - 2], ids.sep]) for tokens in model.vocabulary.encode_batch(TEXTS)]
    tokens = np.full((len(texts), LENGTH), ids.pad)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens, np.arange(LENGTH) < np.array([len(text) for text in texts])[:, None]


@pytest.fixture(scope="module")
def pooled(model, rows):
    """Return what each pooling gives, computed in NumPy from the hidden states."""
    tokens, is_real = rows
    hidden = np.asarray(model.apply(tokens, segment_ids=is_real.astype(int))["hidden"])
    of_texts = [states[real] for states, real in zip(hidden, is_real, strict=True)]
    return {
        "mean": np.stack([states.mean(axis=0) for states in of_texts]),
        "max": np.stack([states.max(axis=0) for states in of_texts]),
        "cls": hidden[:, 0],
    }


@pytest.fixture
def folder(random_model, tmp_path):
    return shutil.copytree(random_model, tmp_path / "folder")


def write(folder, name, content):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def test_poolings(model, pooled, capsys):
    for pooling, expected in pooled.items():
        vectors = model.embed(TEXTS, pooling=pooling, batch_size=2)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    vectors = model.embed(TEXTS, normalize=True)
    np.testing.assert_allclose(vectors, pooled["mean"] / np.linalg.norm(pooled["mean"], axis=1, keepdims=True), atol=1e-6)
    assert "1 text of 5 cut after 64 tokens" in capsys.readouterr().err
    assert model.embed([]).shape == (0, 32)


def test_transformers_gives_the_same(random_model, model):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(random_model)
    rows = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(random_model).eval()(**rows).last_hidden_state
    mask = rows["attention_mask"][..., None]
    means = (hidden * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(model.embed(TEXTS), means.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "pooling", [{"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"}]
)
def test_settings_of_a_folder(folder, pooled, pooling):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    write(
        folder, "modules.json", [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    )
    write(folder, "1_Pooling/config.json", pooling)
    expected = pooled["cls"] / np.linalg.norm(pooled["cls"], axis=1, keepdims=True)
    np.testing.assert_allclose(bertfam.load(folder).embed(TEXTS), expected, atol=1e-6)


def test_length_and_prompts_of_a_folder(folder, model, capsys):
    write(folder, "sentence_bert_config.json", {"max_seq_length": 16})
    prompts = {"query": "Return the value of ", "document": ""}
    write(folder, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "document"})
    other = bertfam.load(folder)
    np.testing.assert_array_equal(other.embed(TEXTS), model.embed(TEXTS, length=16))
    assert capsys.readouterr().err.count("cut after 16 tokens") == 2
    prompted = model.embed([prompts["query"] + text for text in TEXTS], length=16)
    np.testing.assert_array_equal(other.embed(TEXTS, prompt_name="query"), prompted)
    with pytest.raises(UserError, match="no prompt 'passage': its prompts are document, query"):
        other.embed(TEXTS, prompt_name="passage")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "max"]}, "'cls', 'max'.* is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}, "lasttoken"),
        ("modules.json", [{"path": "3_Dense", "type": "sentence_transformers.models.Dense"}], "'Dense'"),
        ("modules.json", [{"path": "../other", "type": "sentence_transformers.models.Pooling"}], "without a path"),
        ("modules.json", {"path": ""}, "modules.json is no list of modules"),
        ("modules.json", [{"path": None, "type": "sentence_transformers.models.Pooling"}], "the path None of a module"),
        ("modules.json", [{"path": 5, "type": "sentence_transformers.models.Pooling"}], "the path 5 of a module"),
        ("modules.json", [{"path": "1_Pooling", "type": "models.Pooling"}], "Pooling module '1_Pooling', which has no config"),
        ("modules.json", [{"path": "", "type": "models.Pooling"}], "Pooling module '', which has no config"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "prompts must be texts"),
    ],
)
def test_a_folder_that_embeds_otherwise(folder, pooled, name, content, words):
    write(folder, name, content)
    model = bertfam.load(folder)  # It can be used otherwise.
    with pytest.raises(UserError, match=f"{words}.*--pooling"):
        model.embed(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS, pooling="max"), pooled["max"], atol=1e-5)


def test_a_pooling_outside_of_the_folder_is_not_used(folder, tmp_path):
    write(tmp_path, "elsewhere/config.json", {"pooling_mode_cls_token": True})
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="1_Pooling is a link out of its folder"):
        bertfam.load(folder).embed(TEXTS[:1])


@pytest.mark.parametrize(
    ("texts", "arguments", "words"),
    [
        ("text", {}, r"write \['text'\]"),
        ([b"text"], {}, r"texts\[0\]"),
        (["text"], {"pooling": "sum"}, "pooling is 'sum', and must be one of mean, cls, max"),
        (["text"], {"length": 65}, "at most 64"),
        (["text"], {"length": 2}, "too few for control tokens"),
        (["text"], {"batch_size": 0}, "batch_size is 0"),
        (["text"], {"prompt_name": "query"}, "has no prompts"),
    ],
)
def test_what_cannot_be_embedded(model, texts, arguments, words):
    with pytest.raises(UserError, match=words):
        model.embed(texts, **arguments)


@pytest.fixture
def written(random_model, tmp_path, monkeypatch):
    """Return a function that embeds the texts of a file, two at a time."""
    monkeypatch.setattr(command, "_AT_ONCE", 2)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))

    def run(name):
        words = [f"--model_dir={random_model}", f"--input={tmp_path}/texts.jsonl", "--text=body", f"--output={tmp_path / name}"]
        assert cli.main(["embed", *words]) == 0
        return tmp_path / name

    return run


def test_formats_of_the_command(written, model, capsys):
    vectors = np.load(written("vectors.npy"), allow_pickle=False)
    assert capsys.readouterr().out.splitlines()[1].startswith("1 text cut after 64 tokens")
    np.testing.assert_allclose(vectors, model.embed(TEXTS), atol=1e-5)
    lines = [json.loads(line)["embedding"] for line in written("vectors.jsonl").read_text().splitlines()]
    np.testing.assert_array_equal(np.array(lines, np.float32), vectors)
    table = parquet.read_table(written("vectors.parquet"))
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), vectors)


def test_an_interrupted_command_resumes(written, monkeypatch, tmp_path):
    expected = written("whole.npy").read_bytes()
    embed, counts = Embedder.embed, []

    def interrupted(self, texts, batch_size):
        counts.append(len(texts))
        if len(counts) == 2:
            raise KeyboardInterrupt
        return embed(self, texts, batch_size)

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "embed", interrupted)
        with pytest.raises(AssertionError):
            written("vectors.npy")
        assert not (tmp_path / "vectors.npy").exists()
        assert written("vectors.npy").read_bytes() == expected and counts == [2, 2, 2, 1]
    assert not list(tmp_path.glob(".*"))


@pytest.fixture(scope="module")
def run(random_model, tmp_path_factory):
    """Return the MODEL_DIR of the model."""
    folder = tmp_path_factory.mktemp("run") / "model"
    assert cli.main(["import", f"--input={random_model}", f"--output={folder}"]) == 0
    return folder


def test_export_for_sentence_transformers(run, model, tmp_path, capsys):
    output = tmp_path / "exported"
    words = ["--sentence_transformers", "--pooling=max", "--normalize", "--length=16"]
    assert cli.main(["export", f"--model_dir={run}", f"--output={output}", *words]) == 0
    assert "by max pooling, scaled to length 1" in capsys.readouterr().out
    modules = json.loads((output / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling", "Normalize"]
    assert all((output / module["path"]).is_dir() for module in modules)
    pooling = json.loads((output / "1_Pooling/config.json").read_text())
    assert pooling["word_embedding_dimension"] == 32
    assert [name for name, value in pooling.items() if value is True] == ["pooling_mode_max_tokens", "include_prompt"]
    assert json.loads((output / "sentence_bert_config.json").read_text()) == {"max_seq_length": 16, "do_lower_case": False}
    assert json.loads((output / "config_sentence_transformers.json").read_text())["similarity_fn_name"] == "cosine"
    expected = model.embed(TEXTS, pooling="max", normalize=True, length=16)
    np.testing.assert_array_equal(bertfam.load(output).embed(TEXTS), expected)


def test_settings_of_embeddings_without_their_files(run, tmp_path, capsys):
    assert cli.main(["export", f"--model_dir={run}", f"--output={tmp_path}/exported", "--pooling=cls"]) == 2
    assert "--pooling is of embeddings: give --sentence_transformers" in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()
