"""Decoding of table models with fewer tokens than beams, immediate ends and probabilities of zero."""

import itertools
from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.api import LanguageModel
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.vocabularies import Encoding
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits, Sample

PIECES = ["</s>", "a", "b", "c"]
END = 0


class TableDecoder(nn.Module):
    @nn.compact
    def __call__(self, words, tokens, *, segment_ids, positions, train, collect, cache):
        table = self.param("table", nn.initializers.zeros_init(), (len(PIECES), len(PIECES)))
        return table[tokens], {"cache": cache}


class Identity(nn.Module):
    def __call__(self, hidden, words):
        return hidden


@dataclass(frozen=True)
class TableConfig:
    """Configuration of a model whose next token depends on the last token only."""

    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    max_length: int = 64
    kind: str = "decoder"
    start: str | None = None
    require_vocab_size: int = len(PIECES)

    def decoder(self, execution):
        return TableDecoder()

    def stacks(self, execution):
        return {"decoder": self.decoder(execution)}

    def lm_head(self, execution):
        return Identity()


class Letters:
    token_ids = TokenIds(size=len(PIECES), pad=END, unk=END, eos=END, special=(END,))

    def encode_prompt(self, text, *, frame=True):
        return Encoding(np.array([PIECES.index(letter) for letter in text], np.int32), list(text), np.zeros((len(text), 2)))

    def decode(self, ids, *, skip_special=False):
        return "".join(PIECES[id] for id in ids if id != END)


def make_model(probabilities):
    """Return a model; the rows are the probabilities after </s> (the start), a, b and c."""
    with np.errstate(divide="ignore"):
        table = np.log(np.array(probabilities, np.float32))
    config, vocabulary = TableConfig(), Letters()
    params = {"embeddings": {"table": jnp.zeros((4, 4))}, "decoder": {"table": table}}
    return LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))


def all_texts(probabilities, max_tokens):
    """Return every text with a probability above 0, finished or cut as in transformers, the most likely first."""
    texts = {}
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(len(PIECES)), repeat=length):
            is_complete = END not in tokens[:-1] and (tokens[-1] == END or length == max_tokens)
            probability = np.prod([probabilities[before][after] for before, after in itertools.pairwise((END, *tokens))])
            if is_complete and probability > 0:
                texts[tokens] = probability
    return sorted(texts.items(), key=lambda entry: -entry[1])


def generate(model, strategy, limits, texts=1, prompt=""):
    (texts_of_prompt,) = model.generate([prompt], strategy, limits, texts=texts, batch_size=1)
    return texts_of_prompt


LIVELY = np.random.default_rng(0).dirichlet(np.ones(4), 4).tolist()
# Only b follows a, the end or c follows b, and only c follows c.
SPARSE = [[0.1, 0.9, 0, 0], [0, 0, 1, 0], [0.75, 0, 0, 0.25], [0, 0, 0, 1]]


@pytest.mark.parametrize("probabilities", [LIVELY, SPARSE], ids=["lively", "sparse"])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_more_beams_than_tokens_find_the_most_likely_texts(probabilities, max_tokens):
    """Return every possible text once, and fewer texts than beams if there are fewer."""
    strategy = BeamSearch(12, length_penalty=0.0, early_stopping="never")
    texts = generate(make_model(probabilities), strategy, Limits(max_tokens), texts=12)
    expected = all_texts(probabilities, max_tokens)[:12]
    np.testing.assert_allclose([text.score for text in texts], np.log([probability for _, probability in expected]), rtol=1e-5)
    np.testing.assert_allclose([text.log_probability for text in texts], [text.score for text in texts], rtol=1e-5)
    assert {tuple(text.tokens) for text in texts} == {tokens for tokens, _ in expected}
    assert len(texts) == len(expected) and {text.ended for text in texts} <= {True, False}


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(1), BeamSearch(5), Sample()], ids=str)
def test_text_may_end_immediately(strategy):
    sure = [[1, 0, 0, 0]] * 4
    for prompt in ("", "ab"):
        (text,) = generate(make_model(sure), strategy, Limits(3), prompt=prompt)
        assert (text.text, text.tokens, text.ended) == (prompt, [END], True)
        assert text.log_probability == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(3), Sample()], ids=str)
def test_text_without_an_allowed_token_stops_unfinished(strategy):
    sure = [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    (text,) = generate(make_model(sure), strategy, Limits(6, min_new_tokens=4))
    assert (text.tokens, text.ended) == ([1], False)
    (text,) = generate(make_model(sure), strategy, Limits(6, no_repeat_ngrams=1))
    assert (text.tokens, text.ended) == ([1], False)  # the text started with </s>, which may not be repeated


def test_rows_that_end_early_do_not_change_others():
    """Mix prompts whose texts end at once with others and with rows that fill the batch."""
    model = make_model([[0.1, 0.9, 0, 0], [0.9, 0, 0.1, 0], [0.05, 0, 0.05, 0.9], [0.05, 0, 0.9, 0.05]])
    for strategy in (Greedy(), BeamSearch(2, early_stopping=True)):
        prompts = ["a", "b", "c", "aa", "ba"]
        together = model.generate(prompts, strategy, Limits(9), batch_size=4)
        for prompt, (text,) in zip(prompts, together, strict=True):
            assert text == generate(model, strategy, Limits(9), prompt=prompt)[0]
        assert len({len(text.tokens) for (text,) in together}) > 1


def test_samples_follow_the_probabilities_of_the_model():
    """Draw the first tokens of 2,000 texts; a chi-square of 2 degrees of freedom exceeds 13.8 once in a thousand times."""
    first = [0, 0.5, 0.3, 0.2]
    texts = generate(make_model([first, *[[1, 0, 0, 0]] * 3]), Sample(seed=5), Limits(2), texts=2000)
    counts = np.bincount([text.tokens[0] for text in texts], minlength=4)
    expected = 2000 * np.array(first)
    assert counts[0] == 0 and ((counts - expected)[1:] ** 2 / expected[1:]).sum() < 13.8
    assert all(text.tokens[1] == END for text in texts)
