"""A few updates of families by the command line: pretrain, evaluate beside baselines, preview, fill, export, import."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from command_line import in_process
from initial_state import leaves
from model_folders import arrays, cut
from same_weights import assert_same_weights

from bertfam import api, cli
from bertfam.interop import huggingface

SIZES = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 32, "max_length": 24}
# A program without dropout compiles in less time; the tests of models and objectives have it.
SIZES |= {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
FAMILIES = {
    # objective, config, optimizer, what is exported, what transformers has no place for, metrics
    "albert": ("mlm_sop", "AlbertConfig", "Lamb", "AlbertForPreTraining", [], {"sop_accuracy", "sop_majority_accuracy"}),
    "structbert": (
        "mlm_structure", "BertConfig", "AdamW", "BertForMaskedLM", ["pooler", "structure_head"],
        {"shuffled_accuracy", "shuffled_unmoved_accuracy", "structure_accuracy", "structure_majority_accuracy"},
    ),
    "spanbert": (
        "mlm_sbo", "BertConfig", "AdamW", "BertForMaskedLM", ["sbo_head"],
        {"sbo_loss", "sbo_accuracy", "sbo_unigram_loss", "sbo_most_frequent_accuracy"},
    ),
    "retromae": (
        "retromae", "BertConfig", "AdamW", "BertForMaskedLM", ["enhanced_decoder"], {"decoder_loss", "decoder_accuracy"},
    ),
}  # fmt: skip
# Classes of each loss.
LOSSES = {
    "albert": {"mlm_loss": 300, "sop_loss": 2},
    "structbert": {"mlm_loss": 300, "shuffled_loss": 300, "structure_loss": 3},
    "spanbert": {"mlm_loss": 300, "sbo_loss": 300},
    "retromae": {"mlm_loss": 300, "decoder_loss": 300},
}


def run_file(folder, *files, steps, checkpoint_every=None, batch_size=8, length=24, lines):
    """Write the configuration of a small run, of gin files and lines; return its path."""
    includes = [f'include "{name}.gin"' for name in (*files, "runs/defaults")]
    values = {"TRAIN_STEPS": steps, "EVAL_EVERY": 0, "CHECKPOINT_EVERY": checkpoint_every or steps, "BATCH_SIZE": batch_size}
    values |= {"Stage.length": length, "Execution.layers": '"unroll"', "LinearDecay.warmup_steps": 1}
    path = folder / "run.gin"
    path.write_text("\n".join([*includes, *(f"{name} = {value}" for name, value in values.items()), *lines]) + "\n")
    return path


def sizes_of(config, **others):
    return [f"{config}.{name} = {value}" for name, value in (SIZES | others).items()]


def assert_exported(params, saved, left_out=()):
    """Check that these are the parameters of a checkpoint, without some parts; rows of no token aside."""
    exported = leaves({"params": params})
    heads = tuple(f"['params']['{part}']" for part in left_out)
    assert exported.keys() == {name for name in saved if name.startswith("['params']") and not name.startswith(heads)}
    assert all(np.array_equal(value[:300], saved[name][:300]) for name, value in exported.items())


@pytest.fixture(scope="module")
def text(trained, tmp_path_factory):
    """Return a file with a few documents of the training text."""
    documents = (trained.folder / "text/train.txt").read_text().split("\n\n")
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(documents[::6]))
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_small_run(trained, tmp_path, family, capsys):
    objective, config, optimizer, architecture, left_out, scores = FAMILIES[family]
    lines = [f"MODEL = @{config}()", f"Run.optimizer = @{optimizer}()", *sizes_of(config)]
    gin = run_file(tmp_path, f"objectives/{objective}", steps=3, lines=lines)
    model_dir, out = tmp_path / "model", tmp_path / "out"
    cache = f"--cache_dir={trained.model_dir / 'cache'}"
    done = in_process("pretrain", f"--gin_file={gin}", cache, f"--model_dir={model_dir}")
    assert done.returncode == 0, done.stderr
    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--baselines", "--json", "--batches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert scores | {"mlm_loss", "mlm_accuracy", "unigram_loss"} <= found.keys() and not any("/" in name for name in found)
    # Three updates of a new model, each of a rate of at most 1e-4: all 300 pieces are as likely still, and all classes.
    for name, classes in LOSSES[family].items():
        assert found[name] == pytest.approx(np.log(classes), rel=0.05), name
    if family == "structbert":  # one mean over masked and shuffled tokens, as in training
        of_tokens = found["loss"] - found["structure_loss"]
        assert min(found["mlm_loss"], found["shuffled_loss"]) <= of_tokens <= max(found["mlm_loss"], found["shuffled_loss"])
    else:
        terms = found.keys() & {"mlm_loss", "sop_loss", "sbo_loss", "decoder_loss"}
        assert len(terms) == 2 and found["loss"] == pytest.approx(sum(found[name] for name in terms))
    if family == "structbert":
        assert cli.main(["preview", f"--model_dir={model_dir}", "--json", f"--html={tmp_path / 'rows.html'}"]) == 0
        records = json.loads(capsys.readouterr().out)
        assert "shuffled" in {prediction["kind"] for record in records for prediction in record["predictions"]}
        assert (tmp_path / "rows.html").stat().st_size > 1000

    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[2].rstrip(":") for line in lines] == left_out and f": {architecture}, float32" in last
    read = huggingface.read(out)
    assert read.ignored == () and "mlm_head" in read.params
    card = (out / "README.md").read_text()
    assert f"# {architecture}\n" in card and "| training | 3 updates, " in card and "train.txt |" in card
    assert_exported(read.params, arrays(model_dir, 3), left_out)
    if family == "albert":  # the others have the encoder and the head of a BERT
        assert cli.main(["import", f"--input={out}", f"--output={tmp_path / 'imported'}"]) == 0
        assert_same_weights(*(api.load(folder) for folder in (model_dir, tmp_path / "imported")))
        capsys.readouterr()
        assert cli.main(["fill", f"--model_dir={model_dir}", "--json", "the value is [MASK] ."]) == 0
        (mask,) = json.loads(capsys.readouterr().out)[0]["masks"]
        likely = [prediction["probability"] for prediction in mask["predictions"]]
        assert len(likely) == 5 and likely == sorted(likely, reverse=True) and all(1 / 300 < each < 3 / 300 for each in likely)


LONG = {
    # objective, config, options, backend, what is exported
    "longformer": ("roberta", "LongformerConfig", ("window = 8", "position_offset = 1"), "blocks", "LongformerForMaskedLM"),
    "bigbird": ("bigbird", "BigBirdConfig", ("block_size = 4", "num_random_blocks = 1"), "block_sparse", "BigBirdForMaskedLM"),
}


@pytest.mark.parametrize("family", LONG)
def test_a_small_run_with_sparse_attention(trained, tmp_path, family, capsys):
    """It is trained, resumed from its first checkpoint with equal bits, exported and read."""
    objective, config, options, backend, architecture = LONG[family]
    lines = [f"MODEL = @{config}()", f'Execution.attention = "{backend}"', *(f"{config}.{line}" for line in options)]
    lines += sizes_of(config, max_length=64)  # neither backend applies dropout of the attention
    gin = run_file(tmp_path, f"objectives/{objective}", steps=4, checkpoint_every=2, batch_size=4, length=64, lines=lines)
    model_dir = tmp_path / "model"
    words = ["pretrain", f"--gin_file={gin}", f"--cache_dir={trained.model_dir / 'cache'}"]
    done = in_process(*words, f"--model_dir={model_dir}")
    assert done.returncode == 0, done.stderr
    assert json.loads((model_dir / "plan.json").read_text())["stages"][0]["attention"].startswith(f"{backend}:")
    again = cut(model_dir, tmp_path / "again", 2)
    done = in_process(*words, f"--model_dir={again}")
    assert done.returncode == 0 and "resumed from step 2" in done.stdout
    left, right = arrays(model_dir, 4), arrays(again, 4)
    assert left.keys() == right.keys() and all(np.array_equal(value, right[name]) for name, value in left.items())

    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={tmp_path / 'out'}"]) == 0
    assert f": {architecture}, float32" in capsys.readouterr().out
    assert_exported(huggingface.read(tmp_path / "out").params, left)


def test_ernie(trained, text, caches_in_process, tmp_path, capsys):
    """From marked text to a file that transformers reads, tasks' table and all."""
    lines = sizes_of("ErnieConfig", task_type_vocab_size=3)
    gin = run_file(tmp_path, "models/ernie_base", "objectives/ernie", steps=2, lines=lines)
    model_dir, out = tmp_path / "model", tmp_path / "out"
    words = [f"--input={text}", f"--validation_input={trained.folder}/text/held-out.txt", "--marks=names"]
    words += [f"--gin_file={gin}", f"--vocab={trained.folder / 'vocab'}"]
    done = in_process("pretrain", *words, f"--model_dir={model_dir}")
    assert done.returncode == 0, done.stderr
    assert (model_dir / "cache/text/train/units.bin").stat().st_size > 1000
    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--baselines", "--json", "--batches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"mlm_accuracy", "most_frequent_accuracy", "nsp_accuracy", "nsp_majority_accuracy"} <= found.keys()
    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    assert "ErnieForPreTraining, float32" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["task_type_vocab_size"] == 3
    assert cli.main(["import", f"--input={out}", f"--output={tmp_path / 'imported'}"]) == 0
    assert cli.main(["fill", f"--model_dir={tmp_path / 'imported'}", "the value is [MASK] ."]) == 0


def test_marked_text(trained, text, caches_in_process, tmp_path, capsys):
    """From names and numbers in plain text to masks of whole units; text without marks is refused."""
    given_text = f"--input={text}"
    units = ["--gin.BertMasking.choice=@Units()", "--gin.BertMasking.drawn_by='unit'", "--gin.Units.basic=0.0"]
    flags = [given_text, "--marks=names", f"--vocab={trained.folder / 'vocab'}"]
    assert cli.main(["cache", *flags, f"--output={tmp_path / 'cache'}"]) == 0
    words = ["preview", "--length=48", "--examples=60", "--json", *units]
    capsys.readouterr()
    assert cli.main([*words, *flags, f"--cache_dir={tmp_path / 'cache'}"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert sum(len(record["predictions"]) for record in records) > 200 and "units" not in records[0]["features"]
    plain = [f"--cache_dir={trained.model_dir / 'cache'}"], [given_text, flags[-1]]
    for given, what in zip(plain, ("the train split of .*/cache", "the text"), strict=True):
        assert cli.main([*words, *given]) == 2
        error = capsys.readouterr().err
        found = re.fullmatch(
            f"bertfam: error: {what} has no marks of phrases and entities, which Units reads: give the text with "
            r"--marks=given or --marks=names, or use noise that reads none \(BertMasking.choice = @WholeWords\(\), say\)\n",
            error,
        )
        assert found, error
    for alone in ("--marks=given", "--marks=names"):
        assert cli.main(["cache", alone, flags[-1], f"--output={tmp_path / 'none'}"]) == 2
        assert f"{alone} says what is marked in the text: give --input=GLOB or --task=NAME" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_marks_that_are_given(text, caches_in_process, tmp_path, capsys):
    """They are in no vocabulary and in no row; without --marks they are text."""
    marked = tmp_path / "marked.txt"
    marked.write_text("\n".join(f"⟨{line}⟩ ⟦of 2026⟧" if line else "" for line in text.read_text().splitlines()))
    for marks in (["--marks=given"], []):
        vocab = tmp_path / f"vocab{len(marks)}"
        assert cli.main(["vocab", f"--input={marked}", *marks, "--size=500", f"--output={vocab}"]) == 0
        assert ("⟨" in (vocab / "vocab.txt").read_text()) == (not marks)
    capsys.readouterr()
    assert cli.main(["cache", "--help"]) == 0
    assert "U+27E8" in capsys.readouterr().out
    for marks in (["--marks=given"], []):
        capsys.readouterr()
        given = [f"--input={marked}", *marks, f"--vocab={tmp_path / 'vocab0'}"]
        assert cli.main(["preview", *given, "--length=48", "--examples=20", "--json"]) == 0
        pieces = {piece for record in json.loads(capsys.readouterr().out) for piece in record["original"]}
        assert "2026" in "".join(pieces) and pieces.isdisjoint("⟨⟩⟦⟧") == bool(marks)


def test_xlnet(trained, tmp_path, capsys):
    """A memory is part of the state: a resumed run has the weights of one that was not stopped, bit for bit."""
    lines = ["PermutationLm.memory_length = 18", "Run.microbatches = 2", "LinearDecay.peak = 1e-2", *sizes_of("XLNetConfig")]
    files = ("models/xlnet_base", "objectives/permutation_lm")
    gin = run_file(tmp_path, *files, steps=4, checkpoint_every=2, lines=lines)
    model_dir, resumed, out = tmp_path / "model", tmp_path / "resumed", tmp_path / "out"
    cache = f"--cache_dir={trained.model_dir / 'cache'}"
    done = in_process("pretrain", f"--gin_file={gin}", cache, f"--model_dir={model_dir}")
    assert done.returncode == 0, done.stderr
    shutil.copytree(model_dir, resumed)
    shutil.rmtree(resumed / "checkpoints" / "4")
    done = in_process("pretrain", f"--model_dir={resumed}", cache)
    assert done.returncode == 0, done.stderr
    model = api.load(model_dir)
    assert_same_weights(model, api.load(resumed))

    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--baselines", "--json", "--batches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"plm_loss", "plm_accuracy", "unigram_loss", "most_frequent_accuracy"} <= found.keys()
    assert found["loss"] == found["plm_loss"] < 2 * np.log(300)
    assert cli.main(["preview", f"--model_dir={model_dir}", "--json", f"--html={tmp_path / 'rows.html'}"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {prediction["kind"] for record in records for prediction in record["predictions"]} == {"permuted"}
    assert all(record["pieces"] == record["original"] for record in records)

    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    assert "XLNetLMHeadModel, float32" in capsys.readouterr().out
    assert cli.main(["import", f"--input={out}", f"--output={tmp_path / 'imported'}"]) == 0
    # Files of this family have no longest row.
    config = dataclasses.replace(model.config, max_length=512)
    assert_same_weights(dataclasses.replace(model, config=config), api.load(tmp_path / "imported"))
    capsys.readouterr()
    assert cli.main(["fill", f"--model_dir={tmp_path / 'imported'}", "--json", "the value is [MASK] ."]) == 0
    (mask,) = json.loads(capsys.readouterr().out)[0]["masks"]
    assert len(mask["predictions"]) == 5


WORD_VECTORS = {
    "word2vec": (
        ("models/word2vec", "objectives/skip_gram"),
        ["Word2VecConfig.hidden_size = 8", "SkipGrams.pairs_per_word = 2", "SkipGrams.threshold = 0.0"],
        "skip_gram_unigram_loss",
        {"skip_gram_loss": 6 * np.log(2)},
    ),
    "elmo": (
        ("models/elmo_characters_small", "objectives/bilm"),
        [
            *("BilmConfig.num_layers = 1", "BilmConfig.hidden_size = 8", "BilmConfig.dropout_rate = 0.0"),
            *("BilmConfig.filters = ((1, 4), (3, 4))", "BilmConfig.longest_word = 8"),
        ],
        "unigram_loss",
        {"forward_loss": np.log(300), "backward_loss": np.log(300)},
    ),
}


@pytest.mark.parametrize("family", WORD_VECTORS)
def test_a_small_run_of_word_vectors(trained, tmp_path, family, capsys):
    files, lines, baseline, losses = WORD_VECTORS[family]
    gin = run_file(tmp_path, *files, steps=2, lines=lines)
    model_dir = tmp_path / "model"
    flags = [f"--gin_file={gin}", f"--cache_dir={trained.model_dir / 'cache'}", f"--model_dir={model_dir}"]
    if family == "word2vec":
        done = in_process("pretrain", *flags, "--gin.SkipGram.negatives=4")
        assert done.returncode == 2 and "SkipGram.negatives is 4, and SkipGrams.negatives 5" in done.stderr
    done = in_process("pretrain", *flags)
    assert done.returncode == 0, done.stderr
    assert cli.main(["evaluate", f"--model_dir={model_dir}", "--baselines", "--json", "--batches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert baseline in found
    for name, loss in losses.items():  # hardly learnt in two updates
        assert found[name] == pytest.approx(loss, rel=0.05), name
    assert cli.main(["export", f"--model_dir={model_dir}", f"--output={tmp_path / 'out'}"]) == 2
    assert cli.main(["analyze", "attention", f"--model_dir={model_dir}", "--text=it", f"--output={tmp_path / 'page.html'}"]) == 2
    assert "has no attention" in capsys.readouterr().err
    vectors = api.load(model_dir).embed(["a value", "a list of values"])
    assert vectors.shape == (2, 8) and np.isfinite(vectors).all()
