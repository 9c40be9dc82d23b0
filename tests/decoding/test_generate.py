"""Texts do not depend on a prompt's company, on a cache or on devices; what cannot be written is refused in one line."""

import argparse
import dataclasses
import functools
import json
import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_gpt2
import xla
from flax import linen as nn
from small_gpt2 import CONFIG, END, PROMPTS, VOCABULARY

from bertfam import api, cli
from bertfam.api import load
from bertfam.commands import generate
from bertfam.decoding.decode import Source, stepper_of
from bertfam.decoding.end_tokens import end_tokens_of_folder
from bertfam.decoding.stepper import Ends, Prompts
from bertfam.decoding.strategies import PRESETS, BeamSearch, Greedy, Limits, Sample
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.layers.execution import Execution
from bertfam.models.bart import BartConfig
from bertfam.models.language_model import init_language_model
from bertfam.training.teachers import open_teacher

LONG = Limits(200, min_new_tokens=150)


@pytest.fixture(scope="module")
def model():
    return small_gpt2.model()


def tokens_of(written):
    return [[text.tokens for text in texts] for texts in written]


@pytest.fixture(scope="module")
def long_texts(model):
    """200 tokens of each prompt, and how often something was compiled for them, for these again and for others as long."""
    compiled = []

    class Counting(logging.Handler):
        def emit(self, record):
            if "Finished XLA compilation of jit(decode)" in record.getMessage():
                compiled.append(record)

    handler, logger = Counting(logging.DEBUG), logging.getLogger("jax")
    logger.addHandler(handler)
    counts = []
    try:
        with jax.log_compiles():
            for prompts in (PROMPTS, PROMPTS, [prompt[::-1] for prompt in PROMPTS]):
                written = model.generate(prompts, Greedy(), LONG)
                first = written if not counts else first  # noqa: F821
                counts.append(len(compiled))
    finally:
        logger.removeHandler(handler)
    return first, counts


def test_two_hundred_tokens_are_compiled_once(long_texts):
    _, counts = long_texts
    assert counts == [1, 1, 1]


def test_logits_over_the_cache_are_those_of_whole_texts(model, long_texts):
    written, _ = long_texts
    end = VOCABULARY.token_ids.eos
    row = np.zeros((1, CONFIG.max_length), np.int32)
    for prompt, (text,) in zip(PROMPTS, written, strict=True):
        before = VOCABULARY.encode_prompt(prompt, frame=False).ids.tolist() or [end]
        whole = [*before, *text.tokens]
        row[0, : len(whole)] = whole
        logits = np.asarray(model.apply(row)["logits"][0], np.float64)[len(before) - 1 : len(whole) - 1]
        likely = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        places = np.arange(len(text.tokens))
        np.testing.assert_allclose(text.log_probabilities, likely[places, text.tokens], rtol=0, atol=1e-4)
        # What is chosen is the likeliest without a cache too, of what may be.
        likely[: LONG.min_new_tokens, end] = -np.inf
        assert (likely.max(-1) - likely[places, text.tokens] < 1e-4).all()
        assert text.log_probability == pytest.approx(text.score, rel=1e-4)
        assert text.ended == (text.tokens[-1] == end) and end not in text.tokens[:-1]
        assert len(text.tokens) == 200 or (text.ended and len(text.tokens) > 150)


@pytest.mark.parametrize(
    ("strategy", "limits", "texts"),
    small_gpt2.ON_MESHES,
    ids=str,
)
def test_texts_of_a_prompt_alone_are_those_in_company(model, strategy, limits, texts):
    together = model.generate(PROMPTS, strategy, limits, texts=texts)
    alone = model.generate(PROMPTS, strategy, limits, texts=texts, batch_size=1)
    assert tokens_of(together) == tokens_of(alone)
    assert len({len(text.tokens) for texts in together for text in texts}) > 1
    for left, right in zip(together, alone, strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-4)
            assert one.text == other.text
    turned = model.generate(PROMPTS[::-1], strategy, limits, texts=texts)
    assert tokens_of(turned) == tokens_of(together[::-1])


def test_seeds_and_numbers_of_texts_give_other_texts(model):
    strategy, limits, texts = small_gpt2.ON_MESHES[0]
    prompts = ["nine more", "nine more", "nine mora", *PROMPTS[:5]]

    def written(seed):
        return tokens_of(model.generate(prompts, dataclasses.replace(strategy, seed=seed), limits, texts=texts))

    first, other = written(0), written(1)
    assert first[0] == first[1] and first[0] != first[2] and first[0][0] != first[0][1]
    assert first == written(0) and first[0] != other[0]


def test_texts_are_the_same_on_four_devices():
    done = subprocess.run(
        [sys.executable, small_gpt2.__file__],
        env=os.environ | xla.devices(4),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == small_gpt2.on_mesh(None)


def test_an_answer_may_be_as_long_as_the_table_of_positions():
    config = BartConfig(9, num_layers=1, hidden_size=8, num_heads=2, feed_forward_size=8, max_length=16)
    row = jnp.ones((2, 16), jnp.int32)
    prompts = Prompts(row[:, :1], jnp.zeros(2, jnp.int32), jnp.ones(2, bool))

    def begun(params, new_tokens):
        return stepper_of(config, params, new_tokens, Execution())[1](prompts, Source(row, row))

    shapes = nn.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    logits, state = jax.eval_shape(functools.partial(begun, new_tokens=16), shapes)
    assert logits.shape == (2, 9) and state.cache.keys.shape == (1, 2, 16, 2, 4)


def test_the_named_strategies():
    assert {name: (preset.strategy, preset.no_repeat_ngrams) for name, preset in PRESETS.items()} == {
        "greedy": (Greedy(), 0),
        "beam": (BeamSearch(beams=5, length_penalty=1.0, early_stopping=False), 2),
        "sample": (Sample(temperature=1.0, top_k=50, top_p=0.95), 0),
    }


@pytest.mark.parametrize(
    ("strategy", "limits", "options", "message"),
    [
        (
            lambda: Sample(temperature=0),
            {},
            {},
            "temperature 0 must be above 0 and finite; for the likeliest token use the strategy greedy",
        ),
        (lambda: Sample(top_p=0), {}, {}, "top_p 0 must be above 0 and at most 1, which keeps all tokens"),
        (lambda: Sample(top_k=-1), {}, {}, "top_k -1 must be at least 1, or 0 for all tokens"),
        (
            lambda: Sample(temperature=float("inf")),
            {},
            {},
            "temperature inf must be above 0 and finite; for the likeliest token use the strategy greedy",
        ),
        (lambda: Sample(seed=2**63), {}, {}, f"seed {2**63} must be at least 0 and below 2^63"),
        (
            lambda: BeamSearch(length_penalty=float("nan")),
            {},
            {},
            "length_penalty nan must be a number; 1 ranks texts by their mean log-probability",
        ),
        (lambda: BeamSearch(0), {}, {}, "beams 0 must be at least 1"),
        (lambda: BeamSearch(early_stopping="yes"), {}, {}, "early_stopping 'yes' is not one of False, True, 'never'"),
        (Greedy, {"max_new_tokens": 0}, {}, "max_new_tokens 0 must be at least 1"),
        (Greedy, {"min_new_tokens": 50}, {}, "min_new_tokens 50 is more than max_new_tokens 40; lower it"),
        (Greedy, {}, {"texts": 2}, "greedy decoding has one text of each prompt, not 2; use beam search or sampling"),
        (BeamSearch, {}, {"texts": 6}, "6 texts of each prompt are more than the 5 beams; use more beams"),
        (
            Greedy,
            {"max_new_tokens": 250},
            {},
            "'twelve lette' has 12 tokens, which with 250 new ones are more than the model's 256; shorten it, or lower "
            "max_new_tokens to 244",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(model, strategy, limits, options, message):
    assert model.generate([]) == []
    with pytest.raises(UserError) as caught:
        model.generate(["a", "twelve lette"], strategy(), Limits(**limits), **options)
    assert str(caught.value) == message


def test_a_model_of_no_numbers_writes_nothing(model):
    broken = small_gpt2.model()
    broken.params["embeddings"]["table"][:] = np.nan
    with pytest.raises(UserError, match="the model's logits are not numbers"):
        broken.generate(["a"], Greedy(), Limits(12), batch_size=1)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    base = tmp_path_factory.mktemp("gpt2")
    VOCABULARY.save(base / "tokenizer")
    files = sorted((base / "tokenizer").iterdir())
    huggingface.write(base / "model", CONFIG, model.params, tokenizer_files=files)
    return base / "model"


def test_the_command_writes_what_the_api_does(model, folder, tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    flags = ["--strategy=sample", "--seed=3", "--max_new_tokens=8", "--num_return=2", "--json"]
    command = [sys.executable, "-m", "bertfam", "generate", f"--model_dir={folder}", f"--prompts={tmp_path / 'prompts.txt'}"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, env=os.environ | xla.devices())
    assert done.returncode == 0, done.stderr
    strategy, limits, texts = small_gpt2.ON_MESHES[0]
    expected = model.generate(PROMPTS, strategy, limits, texts=texts)
    found = json.loads(done.stdout)
    assert [entry["prompt"] for entry in found] == PROMPTS and "" in PROMPTS
    for entry, texts in zip(found, expected, strict=True):
        for written, text in zip(entry["texts"], texts, strict=True):
            assert (written["text"], written["tokens"], written["ended"]) == (text.text, text.tokens, text.ended)
            np.testing.assert_allclose(written["log_probabilities"], text.log_probabilities, atol=1e-4)
            assert written["log_probability"] == pytest.approx(sum(written["log_probabilities"]))


def test_only_ends_of_lines_part_prompts(tmp_path):
    (tmp_path / "prompts.txt").write_bytes("\ufefffirst\u2028still first\r\n\n third\x0c \n".encode())
    args = argparse.Namespace(prompt=[], prompts=str(tmp_path / "prompts.txt"))
    assert generate._prompts(args) == ["first\u2028still first", "", " third\x0c "]


def test_texts_for_people(folder, model, capsys):
    flags = ["--max_new_tokens=12", "--batch_size=1"]
    assert cli.main(["generate", f"--model_dir={folder}", "abc", f"a{END}", *flags]) == 0
    first, second = (text.text for (text,) in model.generate(["abc", f"a{END}"], Greedy(), Limits(12), batch_size=1))
    assert capsys.readouterr().out == f"{first}\n\n---\n{second}\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two"),
        (["a", "--prompts=p"], "give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two"),
        (["--prompts=none.txt"], "--prompts=none.txt cannot be read: No such file or directory"),
        (["a", "--beams=3"], "--beams is of --strategy=beam, and the strategy is greedy; give the one or the other"),
        (
            ["a", "--strategy=beam", "--seed=1"],
            "--seed is of --strategy=sample, and the strategy is beam; give the one or the other",
        ),
        (["a", "--strategy=sample", "--top_p=1.5"], "top_p 1.5 must be above 0 and at most 1, which keeps all tokens"),
        (["a", "--strategy=beams"], "--strategy=beams is not one of the choices; did you mean beam?"),
        (["a", "--step=3"], "{folder} is a Hugging Face folder and has no checkpoints; leave the step out"),
        (["a" * 300], "'" + "a" * 57 + "...' has 300 tokens, which with 40 new ones are more than the model's 256; shorten it"),
    ],
    ids=str,
)
def test_mistakes_on_the_command_line(folder, capsys, flags, message):
    assert cli.main(["generate", f"--model_dir={folder}", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == f"bertfam: error: {message.format(folder=folder)}\n"


def test_a_folder_of_a_run_writes_the_same(folder, model, tmp_path):
    assert cli.main(["import", f"--input={folder}", f"--output={tmp_path / 'run'}"]) == 0
    opened = load(tmp_path / "run")
    assert (opened.config, opened.ends) == (model.config, model.ends) == (model.config, load(folder).ends)
    options = Greedy(), Limits(12)
    assert tokens_of(opened.generate(["abc"], *options)) == tokens_of(model.generate(["abc"], *options))


def test_padding_may_stand_before_tokens_and_behind(model):
    ids = VOCABULARY.encode_prompt(f"nine{END}", frame=False).ids
    alone = model.apply(ids[None], collect=["hidden_states"])
    assert alone["logits"].shape == (1, 5, VOCABULARY.size) and alone["hidden"].shape == (1, 5, 32)
    assert alone["hidden_states"].shape == (3, 1, 5, 32)
    rows = np.full((2, 9), 3)
    rows[0, 4:] = rows[1, :5] = ids
    both = model.apply(rows, segment_ids=[[0] * 4 + [1] * 5, [1] * 5 + [0] * 4])["logits"]
    for found in (both[0, 4:], both[1, :5]):
        np.testing.assert_allclose(found, alone["logits"][0], atol=1e-4)
    with pytest.raises(UserError, match="the model has no encoder for encoder_tokens: put all into tokens"):
        model.apply(rows, encoder_tokens=rows)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config.json": {"eos_token_id": 5, "bos_token_id": 6}}, Ends((5,), 256, 6)),
        ({"config.json": {"eos_token_id": 5}, "generation_config.json": {"eos_token_id": [7, 8]}}, Ends((7, 8), 256, 256)),
        ({"config.json": {"eos_token_id": 50256, "forced_eos_token_id": 9}}, Ends((256,), 256, 256, last=9)),
        ({"config.json": {"forced_bos_token_id": 9, "decoder_start_token_id": 9}}, Ends((256,), 256, 256)),
    ],
)
def test_a_folder_may_say_how_texts_end(files, expected, tmp_path):
    """An id that is no token of the vocabulary, such as the default of a class, says nothing."""
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert end_tokens_of_folder(CONFIG, VOCABULARY.token_ids, tmp_path) == expected


def test_each_kind_of_model_has_its_command(folder, random_model, capsys):
    assert cli.main(["generate", f"--model_dir={random_model}", "a"]) == 2
    assert "holds an encoder, which cannot generate text; use bertfam fill" in capsys.readouterr().err
    assert cli.main(["fill", f"--model_dir={folder}", "a [MASK]"]) == 2
    assert "the model has a decoder and no masks to fill; use bertfam generate" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds a model with a decoder, but a teacher must be an encoder"):
        open_teacher(str(folder))


def test_the_old_name_of_a_decoders_network_is_known(folder, capsys):
    assert isinstance(api.load(folder, network="generator"), api.LanguageModel)
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "is named decoder now, not generator" in warning
    assert list(api.load_networks(folder)) == ["decoder"]
    with pytest.raises(UserError, match="has no network encoder; it has decoder"):
        api.load(folder, network="encoder")
    with pytest.raises(UserError, match="is a causal LM and has no encoder"):
        api.load(folder).encode(np.ones((1, 3), np.int32))
