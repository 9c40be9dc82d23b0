"""Texts of random models, token by token equal to `generate` of transformers for prompts of unequal lengths."""

import dataclasses
import functools
import string
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from bertfam.api import load
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.decoding.prompts import CausalLmPrompts, EncoderDecoderPrompts
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits

END = "<|endoftext|>"
_LETTERS = np.random.default_rng(0)
# The 20 prompts have 5 lengths; transformers gets the prompts of one length together, so that it pads none.
PROMPTS = ["".join(_LETTERS.choice(list(string.ascii_lowercase + "    "), length)) for length in (1, 4, 9, 17) for _ in range(4)]
PROMPTS += [f"so it ends.{END}Then next one", f"{END}ab{END}", f"The end{END}{END}", "x" * 25]
PROMPTS = [PROMPTS[place] for place in np.random.default_rng(1).permutation(len(PROMPTS))]
BEAMS = BeamSearch(4, length_penalty=1.5), Limits(14, min_new_tokens=2, no_repeat_ngrams=2), 3
CASES = [
    ("opt", *BEAMS),
    ("t5", Greedy(), Limits(16), 1),
    ("bart", *BEAMS),
]
# kind -> layout of the vocabulary, and sizes of config.json
KINDS = {
    "opt": (
        "gpt2",
        {"max_position_embeddings": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "t5": ("roberta", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1}),
    # The first token is forced to be <s>, and the last to be </s>.
    "bart": (
        "roberta",
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
        | {"decoder_start_token_id": 2, "forced_eos_token_id": 2},
    ),
}


@functools.cache
def vocabulary(layout):
    controls = LAYOUTS[layout]
    return ByteBpe([*controls.first, *sorted(ByteLevel.alphabet()), *controls.last], [], layout=controls)


def random_torch_model(kind):
    """Return a small model with a likely end token, so that some texts end."""
    torch = pytest.importorskip("torch")
    import transformers

    layout, sizes = KINDS[kind]
    tokens = vocabulary(layout).token_ids
    ids = {
        "bos_token_id": tokens.eos if tokens.cls is None else tokens.cls,
        "eos_token_id": tokens.eos,
        "pad_token_id": tokens.pad,
    }
    config = transformers.AutoConfig.for_model(kind, vocab_size=tokens.size, **sizes, **ids)
    torch.manual_seed(0)
    kinds = {True: transformers.AutoModelForSeq2SeqLM, False: transformers.AutoModelForCausalLM}
    model = kinds[config.is_encoder_decoder].from_config(config, attn_implementation="eager").eval()
    # Large position embeddings and small biases keep the texts different.
    scales = {"bias": 0.06, "embed_positions.weight": 0.9}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = ("norm" in name or ".ln_" in name) and name.endswith("weight")
            scale = next((scale for ending, scale in scales.items() if name.endswith(ending)), 0.3)
            parameter.normal_(1.0 if is_scale else 0.0, scale)
        torch.manual_seed(2)
        model.get_input_embeddings().weight[tokens.eos].normal_(0.0, 0.9)
    model.generation_config.update(**ids, forced_bos_token_id=0 if kind == "bart" else None)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function from kind to the torch model and the folder that it and its tokenizer were saved in."""

    @functools.cache
    def save_model(kind):
        folder = tmp_path_factory.mktemp(kind)
        model = random_torch_model(kind)
        model.save_pretrained(folder)
        vocabulary(KINDS[kind][0]).save(folder)
        return model, folder

    return save_model


def generate_with_transformers(model, prompts, strategy, limits, texts):
    """Return the ids of the texts of each prompt, and their scores."""
    torch = pytest.importorskip("torch")

    options = {"max_new_tokens": limits.max_new_tokens, "do_sample": False, "num_return_sequences": texts}
    options |= {"min_new_tokens": limits.min_new_tokens or None, "no_repeat_ngram_size": limits.no_repeat_ngrams or None}
    if isinstance(strategy, BeamSearch):
        options |= {"num_beams": strategy.beams, "length_penalty": strategy.length_penalty}
        options |= {"early_stopping": strategy.early_stopping}
    is_encoder_decoder = model.config.is_encoder_decoder
    tokenizer = vocabulary("roberta" if is_encoder_decoder else "gpt2")
    end, results = model.generation_config.eos_token_id, {}
    prefix = [end] if model.config.model_type == "opt" else []  # added by OPT's own tokenizer
    encoded = [[*prefix, *tokenizer.encode_prompt(prompt, frame=is_encoder_decoder).ids] for prompt in prompts]
    for length in {len(ids) for ids in encoded}:
        places = [place for place, ids in enumerate(encoded) if len(ids) == length]
        input_ids = torch.tensor([encoded[place] for place in places])
        mask = torch.ones_like(input_ids)
        output = model.generate(input_ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **options)
        sequences = [row[1 if is_encoder_decoder else length :] for row in output.sequences.tolist()]
        sequences = [row[: row.index(end) + 1] if end in row else row for row in sequences]
        scores = getattr(output, "sequences_scores", torch.zeros(len(sequences))).tolist()
        for place, at in zip(places, range(0, len(sequences), texts), strict=True):
            results[place] = sequences[at : at + texts], scores[at : at + texts]
    return [results[place] for place in range(len(prompts))]


@pytest.mark.parametrize(("kind", "strategy", "limits", "texts"), CASES, ids=str)
def test_texts_of_twenty_prompts_equal_those_of_transformers(folders, kind, strategy, limits, texts):
    model, folder = folders(kind)
    tokenizer, is_encoder_decoder = vocabulary(KINDS[kind][0]), model.config.is_encoder_decoder
    model_of_folder = load(folder)
    generated = model_of_folder.generate(PROMPTS, strategy, limits, texts=texts, batch_size=len(PROMPTS))
    lengths = set()
    for prompt, own, (expected, scores) in zip(
        PROMPTS, generated, generate_with_transformers(model, PROMPTS, strategy, limits, texts), strict=True
    ):
        assert [text.tokens for text in own] == expected, prompt
        if isinstance(strategy, BeamSearch):
            np.testing.assert_allclose([text.score for text in own], scores, rtol=1e-4)
        for text in own:
            assert text.text == ("" if is_encoder_decoder else prompt) + tokenizer.decode(text.tokens, skip_special=True)
            assert text.ended == (text.tokens[-1] == tokenizer.token_ids.eos)
            lengths.add(len(text.tokens))
    assert limits.max_new_tokens in lengths and len(lengths) > 2
    if kind == "t5":
        check_without_cache(model_of_folder, generated)


def test_sentinels_in_outputs_of_encoder_decoders_are_kept():
    controls = dataclasses.replace(LAYOUTS["roberta"], sentinels=2)
    pieces = [*controls.first, *sorted(ByteLevel.alphabet()), *controls.last, "<extra_id_1>", "<extra_id_0>"]
    vocabulary_with_sentinels = ByteBpe(pieces, [], layout=controls)
    ids = vocabulary_with_sentinels.encode_prompt("<s><extra_id_0>new<extra_id_1><mask>one</s><pad>", frame=False).ids
    texts = {
        is_encoder_decoder: form.spell(SimpleNamespace(vocabulary=vocabulary_with_sentinels), "", np.zeros(0, int), list(ids))
        for is_encoder_decoder, form in ((True, EncoderDecoderPrompts()), (False, CausalLmPrompts()))
    }
    assert texts == {True: "<extra_id_0>new<extra_id_1>one", False: "newone"}


def check_without_cache(model, generated):
    """Compare the log-probabilities of an encoder-decoder's whole texts with those of its steps."""
    length, start = max(len(text.tokens) for (text,) in generated), model.ends.start
    prompts = [model.vocabulary.encode_prompt(prompt).ids for prompt in PROMPTS]
    tokens = np.array([(text.tokens + [0] * length)[:length] for (text,) in generated])
    lengths = np.array([len(ids) for ids in prompts])[:, None]
    logits = model.apply(
        np.concatenate([np.full((len(tokens), 1), start), tokens[:, :-1]], axis=1),
        encoder_tokens=np.stack([np.pad(ids, (0, lengths.max() - len(ids)), constant_values=7) for ids in prompts]),
        encoder_segment_ids=np.arange(lengths.max()) < lengths,
    )["logits"]
    assert logits.shape == (20, length, model.vocabulary.size)
    logits = np.asarray(logits, np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for row, (text,) in enumerate(generated):
        places = np.arange(len(text.tokens))
        np.testing.assert_allclose(text.log_probabilities, log_probabilities[row, places, text.tokens], rtol=0, atol=1e-4)
