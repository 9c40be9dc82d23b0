"""Generated texts, independent of other prompts, of the cache and of devices, and refused settings in one line."""

import argparse
import dataclasses
import functools
import gzip
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_gpt2
import xla
from flax import linen as nn
from fork_server import run_program
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


def token_lists(generated):
    return [[text.tokens for text in texts] for texts in generated]


@pytest.fixture(scope="module")
def long_texts(model):
    """Texts of 200 tokens, and the number of compilations after these prompts, and after others of the same lengths."""
    compiled = []

    class CountingHandler(logging.Handler):
        def emit(self, record):
            if "Finished XLA compilation of jit(decode)" in record.getMessage():
                compiled.append(record)

    handler, logger = CountingHandler(logging.DEBUG), logging.getLogger("jax")
    logger.addHandler(handler)
    counts = []
    try:
        with jax.log_compiles():
            for prompts in (PROMPTS, [prompt[::-1] for prompt in PROMPTS]):
                generated = model.generate(prompts, Greedy(), LONG)
                first = generated if not counts else first  # noqa: F821
                counts.append(len(compiled))
    finally:
        logger.removeHandler(handler)
    return first, counts


def test_generation_of_two_hundred_tokens_compiles_once(long_texts):
    _, counts = long_texts
    assert counts == [1, 1]


def test_cached_logits_equal_those_of_whole_texts(model, long_texts):
    generated, _ = long_texts
    end = VOCABULARY.token_ids.eos
    row = np.zeros((1, CONFIG.max_length), np.int32)
    for prompt, (text,) in zip(PROMPTS, generated, strict=True):
        prompt_ids = VOCABULARY.encode_prompt(prompt, frame=False).ids.tolist() or [end]
        whole = [*prompt_ids, *text.tokens]
        row[0, : len(whole)] = whole
        logits = np.asarray(model.apply(row)["logits"][0], np.float64)[len(prompt_ids) - 1 : len(whole) - 1]
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        places = np.arange(len(text.tokens))
        np.testing.assert_allclose(text.log_probabilities, log_probabilities[places, text.tokens], rtol=0, atol=1e-4)
        # Without a cache, the same allowed token is the most likely one.
        log_probabilities[: LONG.min_new_tokens, end] = -np.inf
        assert (log_probabilities.max(-1) - log_probabilities[places, text.tokens] < 1e-4).all()
        assert text.log_probability == pytest.approx(text.score, rel=1e-4)
        assert text.ended == (text.tokens[-1] == end) and end not in text.tokens[:-1]
        assert len(text.tokens) == 200 or (text.ended and len(text.tokens) > 150)


@pytest.mark.parametrize(
    ("strategy", "limits", "texts"),
    small_gpt2.ON_MESHES,
    ids=str,
)
def test_texts_do_not_depend_on_other_prompts(model, strategy, limits, texts):
    together = model.generate(PROMPTS, strategy, limits, texts=texts)
    alone = model.generate(PROMPTS, strategy, limits, texts=texts, batch_size=1)
    assert token_lists(together) == token_lists(alone)
    assert len({len(text.tokens) for texts in together for text in texts}) > 1
    for left, right in zip(together, alone, strict=True):
        for one, other in zip(left, right, strict=True):
            np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-4)
            assert one.text == other.text
    reversed_prompts = model.generate(PROMPTS[::-1], strategy, limits, texts=texts)
    assert token_lists(reversed_prompts) == token_lists(together[::-1])


def test_layers_that_are_divided_compute_the_same_bits(model, monkeypatch):
    options = {"strategy": small_gpt2.ON_MESHES[0][0], "limits": Limits(max_new_tokens=5)}
    divided = model.generate(PROMPTS[:2], **options)
    monkeypatch.setattr("bertfam.decoding.generate.divided_on_cpu", jax.device_put)
    assert model.generate(PROMPTS[:2], **options) == divided


def test_texts_differ_by_seed_prompt_and_number(model):
    strategy, limits, texts = small_gpt2.ON_MESHES[0]
    prompts = ["nine more", "nine more", "nine mora", *PROMPTS[:5]]

    def generate_tokens(seed):
        return token_lists(model.generate(prompts, dataclasses.replace(strategy, seed=seed), limits, texts=texts))

    first, other = generate_tokens(0), generate_tokens(1)
    assert first[0] == first[1] and first[0] != first[2] and first[0][0] != first[0][1]
    assert first == generate_tokens(0) and first[0] != other[0]


def test_texts_are_the_same_on_four_devices():
    out, _ = run_program(small_gpt2.__file__, environment=xla.device_environment(4))
    assert json.loads(out.splitlines()[-1]) == small_gpt2.generate_on_mesh(None)


def test_output_may_use_all_positions():
    config = BartConfig(9, num_layers=1, hidden_size=8, num_heads=2, feed_forward_size=8, max_length=16)
    row = jnp.ones((2, 16), jnp.int32)
    prompts = Prompts(row[:, :1], jnp.zeros(2, jnp.int32), jnp.ones(2, bool))

    def prefill(params, new_tokens):
        return stepper_of(config, params, new_tokens, Execution())[1](prompts, Source(row, row))

    shapes = nn.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    logits, state = jax.eval_shape(functools.partial(prefill, new_tokens=16), shapes)
    assert logits.shape == (2, 9) and state.cache.keys.shape == (1, 2, 16, 2, 4)


def test_presets_of_strategies():
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
def test_bad_generation_settings_are_refused(model, strategy, limits, options, message):
    assert model.generate([]) == []
    with pytest.raises(UserError) as caught:
        model.generate(["a", "twelve lette"], strategy(), Limits(**limits), **options)
    assert str(caught.value) == message


def test_model_with_nan_logits_is_refused(model):
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


def test_command_generates_the_texts_of_the_api(model, folder, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    flags = ["--strategy=sample", "--seed=3", "--max_new_tokens=8", "--num_return=2", "--json"]
    assert cli.main(["generate", f"--model_dir={folder}", f"--prompts={tmp_path / 'prompts.txt'}", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    strategy, limits, texts = small_gpt2.ON_MESHES[0]
    expected = model.generate(PROMPTS, strategy, limits, texts=texts)
    assert [entry["prompt"] for entry in printed] == PROMPTS and "" in PROMPTS
    for entry, texts in zip(printed, expected, strict=True):
        for printed_text, text in zip(entry["texts"], texts, strict=True):
            assert (printed_text["text"], printed_text["tokens"], printed_text["ended"]) == (text.text, text.tokens, text.ended)
            np.testing.assert_allclose(printed_text["log_probabilities"], text.log_probabilities, atol=1e-4)
            assert printed_text["log_probability"] == pytest.approx(sum(printed_text["log_probabilities"]))


def test_prompts_are_separated_by_line_ends_only(tmp_path):
    (tmp_path / "prompts.txt").write_bytes("\ufefffirst\u2028still first\r\n\n third\x0c \n".encode())
    args = argparse.Namespace(prompt=[], prompts=str(tmp_path / "prompts.txt"))
    assert generate._prompts(args) == ["first\u2028still first", "", " third\x0c "]
    (tmp_path / "prompts.txt.gz").write_bytes(gzip.compress((tmp_path / "prompts.txt").read_bytes()))
    args.prompts += ".gz"
    assert generate._prompts(args) == ["first\u2028still first", "", " third\x0c "]


def test_plain_output_of_the_command(folder, model, capsys):
    flags = ["--max_new_tokens=12", "--batch_size=1"]
    assert cli.main(["generate", f"--model_dir={folder}", "abc", f"a{END}", *flags]) == 0
    first, second = (text.text for (text,) in model.generate(["abc", f"a{END}"], Greedy(), Limits(12), batch_size=1))
    assert capsys.readouterr().out == f"{first}\n\n---\n{second}\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two"),
        (["a", "--prompts=p"], "give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two"),
        (
            ["--prompts=none.txt"],
            "--prompts=none.txt cannot be read: No such file or directory; a prompt itself is given without --prompts",
        ),
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
def test_mistakes_in_flags_of_generate_are_reported(folder, capsys, flags, message):
    assert cli.main(["generate", f"--model_dir={folder}", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == f"bertfam: error: {message.format(folder=folder)}\n"


def test_model_directory_generates_the_same_texts(folder, model, tmp_path):
    assert cli.main(["import", f"--input={folder}", f"--output={tmp_path / 'run'}"]) == 0
    opened = load(tmp_path / "run")
    assert (opened.config, opened.ends) == (model.config, model.ends) == (model.config, load(folder).ends)
    options = Greedy(), Limits(12)
    assert token_lists(opened.generate(["abc"], *options)) == token_lists(model.generate(["abc"], *options))


def test_padding_may_precede_or_follow_the_tokens(model):
    ids = VOCABULARY.encode_prompt(f"nine{END}", frame=False).ids
    alone = model.apply(ids[None], collect=["hidden_states"])
    assert alone["logits"].shape == (1, 5, VOCABULARY.size) and alone["hidden"].shape == (1, 5, 32)
    assert alone["hidden_states"].shape == (3, 1, 5, 32)
    rows = np.full((2, 9), 3)
    rows[0, 4:] = rows[1, :5] = ids
    padded_logits = model.apply(rows, segment_ids=[[0] * 4 + [1] * 5, [1] * 5 + [0] * 4])["logits"]
    for logits in (padded_logits[0, 4:], padded_logits[1, :5]):
        np.testing.assert_allclose(logits, alone["logits"][0], atol=1e-4)
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
def test_end_tokens_are_read_from_the_folder(files, expected, tmp_path, capsys):
    """Ignore ids outside the vocabulary, such as the defaults of a class, with a warning."""
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert end_tokens_of_folder(CONFIG, VOCABULARY.token_ids, tmp_path) == expected
    is_beyond = 50256 in files["config.json"].values()
    assert (f"{tmp_path / 'config.json'}: eos_token_id is 50256" in capsys.readouterr().err) == is_beyond
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(UserError, match="generation_config.json"):
        end_tokens_of_folder(CONFIG, VOCABULARY.token_ids, tmp_path)


def test_commands_refuse_other_kinds_of_models(folder, random_model, capsys):
    assert cli.main(["generate", f"--model_dir={random_model}", "a"]) == 2
    assert "holds an encoder, which cannot generate text; use bertfam fill" in capsys.readouterr().err
    assert cli.main(["fill", f"--model_dir={folder}", "a [MASK]"]) == 2
    assert "the model has a decoder and no masks to fill; use bertfam generate" in capsys.readouterr().err
    with pytest.raises(UserError, match="holds a model with a decoder, but a teacher must be an encoder"):
        open_teacher(str(folder))


def test_old_network_name_of_a_decoder_works_with_a_warning(folder, capsys):
    assert isinstance(api.load(folder, network="generator"), api.LanguageModel)
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "is named decoder now, not generator" in warning
    assert list(api.load_networks(folder)) == ["decoder"]
    with pytest.raises(UserError, match="has no network encoder; it has decoder"):
        api.load(folder, network="encoder")
    with pytest.raises(UserError, match="is a causal LM and has no encoder"):
        api.load(folder).encode(np.ones((1, 3), np.int32))
