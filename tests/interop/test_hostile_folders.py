"""Import of folders that were damaged, or made to harm: one line, exit status 2, and nothing is written."""

import copy
import json
import os
import random
import shutil
import struct

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers.pre_tokenizers import ByteLevel

from bertfam.cli import main
from bertfam.data import vocabularies
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.interop.safetensors import open_tensors
from bertfam.models.bart import BartConfig
from bertfam.models.bert import BertConfig
from bertfam.models.modernbert import ModernBertConfig

VOCABULARY = WordPiece([*SPECIAL_PIECES, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")])
SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 24}
CONFIG = BertConfig(vocab_size=VOCABULARY.size, max_length=12, **SIZES)
INDEX = "model.safetensors.index.json"


def write_folder(folder, config):
    parts = max(huggingface.family_of(config).architectures, key=len)
    shapes = huggingface.shapes_of(config, parts)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    huggingface.write(folder, config, params)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("whole") / "theirs", CONFIG)
    VOCABULARY.save(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "theirs")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def index(folder, name):
    """Say in an index that all tensors are in a file of this name, in place of the single file."""
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, name)}))


def move_out(folder, name):
    (folder / name).rename(folder.parent / "outside")
    (folder / name).symlink_to("../outside")


def fifo(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)


def directory(folder, name):
    (folder / name).unlink()
    (folder / name).mkdir()


def enlarge(folder, name):
    with open(folder / name, "r+b") as file:
        file.truncate(200 * 2**20)


def outside_index(folder):
    shutil.copy(folder / "model.safetensors", folder.parent / "x.safetensors")
    index(folder, "../x.safetensors")


def float8(folder):
    tensors = load_file(folder / "model.safetensors")
    name = "bert.pooler.dense.bias"
    tensors[name] = tensors[name].astype(np.int8)
    save_file(tensors, folder / "model.safetensors")


def with_value(folder, value, dtype=np.float32):
    tensors = load_file(folder / "model.safetensors")
    name = "bert.pooler.dense.bias"
    tensors[name] = tensors[name].astype(dtype)
    tensors[name][3] = value
    save_file(tensors, folder / "model.safetensors")


def adapter(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")


def bomb(folder):
    """Claim more numbers than the file has bytes."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


CASES = {
    "index leads out": (outside_index, "'../x.safetensors'.*without a path"),
    "index leads to an absolute path": (lambda f: index(f, "/etc/passwd"), "'/etc/passwd'.*without a path"),
    "long name in the index": (lambda f: index(f, "n" * 5000), "'nnn.*without a path"),
    "index names a folder": (lambda f: [index(f, "d"), (f / "d").mkdir()], "/d is not a regular file"),
    "index without a map": (lambda f: [index(f, "a"), (f / INDEX).write_text('{"weight_map": 5}')], "weight_map is 5"),
    "tensors elsewhere": (lambda f: move_out(f, "model.safetensors"), "link out of its folder"),
    "config elsewhere": (lambda f: move_out(f, "config.json"), "link out of its folder"),
    "vocabulary elsewhere": (lambda f: move_out(f, "tokenizer.json"), "link out of its folder"),
    "tensors as a pipe": (lambda f: fifo(f, "model.safetensors"), "not a regular file"),
    "config as a pipe": (lambda f: fifo(f, "config.json"), "not a regular file"),
    "vocabulary as a pipe": (lambda f: [(f / "tokenizer.json").unlink(), fifo(f, "vocab.txt")], "not a regular file"),
    "tokenizer settings as a pipe": (lambda f: fifo(f, "tokenizer_config.json"), "not a regular file"),
    "config as a folder": (lambda f: directory(f, "config.json"), "not a regular file"),
    "tensors as a folder": (lambda f: directory(f, "model.safetensors"), "not a regular file"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 10**5 + "]" * 10**5), "levels deep"),
    "large config": (lambda f: enlarge(f, "config.json"), "has 200 MiB"),
    "large tokenizer": (lambda f: enlarge(f, "tokenizer.json"), "has 200 MiB"),
    "architectures": (lambda f: edit(f / "config.json", architectures=5), "architectures is 5"),
    "model type": (lambda f: edit(f / "config.json", model_type=["bert"] * 10**5), r"model_type is \['bert'.{1,60}, supp"),
    "many layers": (lambda f: edit(f / "config.json", num_hidden_layers=10**9), "num_hidden_layers' is 1000000000"),
    "layers as a fraction": (lambda f: edit(f / "config.json", num_hidden_layers=1e9), "num_hidden_layers must be stated"),
    "wide model": (lambda f: edit(f / "config.json", hidden_size=2 * 10**9), "hidden_size = 2000000000"),
    "long table": (lambda f: edit(f / "config.json", vocab_size=10**9), "vocab_size = 1000000000"),
    "huge number": (lambda f: edit(f / "config.json", layer_norm_eps=10**400), "layer_norm_eps'? .*64 bits"),
    "integers as weights": (float8, "bert.pooler.dense.bias has the type I8"),
    "NaN": (lambda f: with_value(f, np.nan), "model.safetensors: bert.pooler.dense.bias has values that are NaN"),
    "infinity": (lambda f: with_value(f, np.inf, np.float16), "bert.pooler.dense.bias has values that are NaN, infinite"),
    "above float32": (lambda f: with_value(f, 1e200, np.float64), "bert.pooler.dense.bias has values .* above 3.4e"),
    "pointer of Git LFS": (
        lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "run git lfs pull",
    ),
    "adapter": (adapter, "config.json is missing.*adapter"),
    "claimed numbers": (bomb, "no whole safetensors file"),
    "no tensors": (lambda f: (f / "model.safetensors").write_bytes(b""), "no whole safetensors file"),
}


@pytest.mark.parametrize("name", CASES)
def test_import_refuses_the_folder_in_one_line(folder, tmp_path, capsys, name):
    change, message = CASES[name]
    change(folder)
    assert main(["import", f"--input={folder}", f"--output={tmp_path / 'model'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    with pytest.raises(UserError, match=message):
        raise UserError(line)
    assert len(line) < 1000 and not (tmp_path / "model").exists()


def test_the_single_file_comes_before_shards_as_in_transformers(folder, capsys):
    whole = folder / "model.safetensors"
    kept = whole.read_bytes()
    tensors = load_file(whole)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, folder / "shard.safetensors")
    index(folder, "shard.safetensors")
    assert {tensor.path.name for tensor in open_tensors(folder).values()} == {"shard.safetensors"}
    whole.write_bytes(kept)
    assert {tensor.path for tensor in open_tensors(folder).values()} == {whole}
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in ("warning", str(folder), INDEX, "ignored"))


def test_model_folder_in_place_of_a_hugging_face_folder_is_recognised(tmp_path, capsys):
    (tmp_path / "config.gin").touch()
    assert main(["import", f"--input={tmp_path}", f"--output={tmp_path / 'made'}"]) == 2
    assert "use it as --model_dir" in capsys.readouterr().err and not (tmp_path / "made").exists()


def test_file_of_a_folder_and_a_name_of_the_hub_are_recognised(folder, tmp_path, capsys):
    for given, fix in (
        (folder / "model.safetensors", f"name the folder, {folder}"),
        ("bert-base-uncased", "hf download bert-base-uncased"),
    ):
        assert main(["import", f"--input={given}", f"--output={tmp_path / 'made'}"]) == 2
        assert fix in capsys.readouterr().err
    assert main(["fill", f"--model_dir={folder / 'model.safetensors'}", "[MASK]"]) == 2
    assert f"it is in the model folder {folder}: name that" in capsys.readouterr().err


def test_folder_with_an_impossible_name_is_refused(tmp_path, capsys):
    assert main(["import", f"--input={'n' * 5000}", f"--output={tmp_path / 'model'}"]) == 2
    assert "names have at most 255" in capsys.readouterr().err


HOSTILE = [None, True, 5, -1, 10**9, 10**30, 1e400, "x", "\x00", "é" * 300, [], [[]], {}, {"type": 5}, [1, "a"]]


def positions(value, path=()):
    """Return the paths to values of nested objects and lists, of long ones only to the first few."""
    yield path
    if isinstance(value, dict | list):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, inner in pairs if len(path) == 0 else pairs[:3]:
            yield from positions(inner, (*path, key))


def variants(content):
    """Return copies of a JSON object with one value replaced, by two of the hostile values each."""
    sample = random.Random(0).sample
    for path in positions(content):
        for value in sample(HOSTILE, len(HOSTILE) if "BERTFAM_LONG_TESTS" in os.environ else 2) if path else []:
            changed = copy.deepcopy(content)
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            yield path, value, changed


def refused_or_read(read, path, content):
    """Read after each replacement of a value in a JSON file; any other exception than UserError fails."""
    refused = 0
    for place, value, changed in variants(content):
        path.write_text(json.dumps(changed))
        try:
            read(path.parent)
        except UserError as error:
            refused += 1
            assert str(path.parent) in str(error), (place, value, error)
        except Exception as error:
            raise AssertionError(f"{place} = {value!r}") from error
    return refused


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        ModernBertConfig(vocab_size=20, **SIZES),
        BartConfig(vocab_size=20, max_length=12, **SIZES),
    ],
    ids=lambda config: type(config).__name__,
)
def test_any_value_in_config_json_is_read_or_refused(tmp_path, config):
    folder = write_folder(tmp_path / "theirs", config)
    content = json.loads((folder / "config.json").read_text())
    assert refused_or_read(huggingface.read, folder / "config.json", content) > 3


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_any_value_in_tokenizer_files_is_read_or_refused(tmp_path, kind, name):
    layout = LAYOUTS["roberta"]
    pieces = [*layout.first, *sorted(ByteLevel.alphabet()), "ab", *layout.last]
    vocabulary = VOCABULARY if kind == "wordpiece" else ByteBpe(pieces, [("a", "b")], layout=layout)
    vocabulary.save(tmp_path)
    content = json.loads((tmp_path / name).read_text())
    if name == "tokenizer_config.json":
        (tmp_path / "tokenizer.json").unlink()
    assert refused_or_read(vocabularies.load, tmp_path / name, content) > 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token_id": 500}, "pad_token_id' is 500, and the model has the ids 0 to 20"),
        ({"decoder_start_token_id": -2}, "decoder_start_token_id' is -2"),
        ({"pad_token_id": "0"}, "pad_token_id' is '0', and must be the id of a token, or null"),
        ({"eos_token_id": [1, True]}, "eos_token_id' is "),
    ],
)
def test_ids_that_are_none_of_the_model_are_refused(folder, changes, message, tmp_path, capsys):
    edit(folder / "config.json", **changes)
    assert main(["import", f"--input={folder}", f"--output={tmp_path / 'out'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder / 'config.json'}: '" in line and message in line
    assert not (tmp_path / "out").exists()


def test_ids_that_the_defaults_of_a_class_left_are_named_once(folder, capsys):
    edit(folder / "config.json", bos_token_id=50256, eos_token_id=-1, sep_token_id=None)
    for _ in range(2):
        huggingface.inspect(folder)
    (line,) = capsys.readouterr().err.splitlines()
    assert "bos_token_id' is 50256" in line and "the token of the tokenizer is used" in line
