"""Fewer tokens than beams, ends at once, probabilities of 0: a family of tables, bound here, that writes by the same loops."""

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
    """What a token is followed by depends on it alone."""

    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    max_length: int = 64
    has_encoder: bool = False
    start: str | None = None
    require_vocab_size: int = len(PIECES)

    def decoder(self, execution):
        return TableDecoder()

    def lm_head(self, execution):
        return Identity()


class Letters:
    token_ids = TokenIds(size=len(PIECES), pad=END, unk=END, eos=END, special=(END,))

    def encode_prompt(self, text, *, frame=True):
        return Encoding(np.array([PIECES.index(letter) for letter in text], np.int32), list(text), np.zeros((len(text), 2)))

    def decode(self, ids, *, skip_special=False):
        return "".join(PIECES[id] for id in ids if id != END)


def model_of(probabilities):
    """Rows: what comes after </s> (the beginning), a, b and c."""
    with np.errstate(divide="ignore"):
        table = np.log(np.array(probabilities, np.float32))
    config, vocabulary = TableConfig(), Letters()
    params = {"embeddings": {"table": jnp.zeros((4, 4))}, "decoder": {"table": table}}
    return LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))


def all_texts(probabilities, most):
    """Every text of probability above 0, as transformers counts them: with an end, or cut; the likeliest first."""
    found = {}
    for length in range(1, most + 1):
        for tokens in itertools.product(range(len(PIECES)), repeat=length):
            whole = END not in tokens[:-1] and (tokens[-1] == END or length == most)
            probability = np.prod([probabilities[before][after] for before, after in itertools.pairwise((END, *tokens))])
            if whole and probability > 0:
                found[tokens] = probability
    return sorted(found.items(), key=lambda entry: -entry[1])


def written(model, strategy, limits, texts=1, prompt=""):
    (found,) = model.generate([prompt], strategy, limits, texts=texts, batch_size=1)
    return found


LIVELY = np.random.default_rng(0).dirichlet(np.ones(4), 4).tolist()
# Of a only b follows, of b the end or c, of c only c.
SPARSE = [[0.1, 0.9, 0, 0], [0, 0, 1, 0], [0.75, 0, 0, 0.25], [0, 0, 0, 1]]


@pytest.mark.parametrize("probabilities", [LIVELY, SPARSE], ids=["lively", "sparse"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_more_beams_than_tokens_find_the_likeliest_texts(probabilities, most):
    """Each once, and none that is impossible: where there are fewer than beams, fewer are given."""
    strategy = BeamSearch(12, length_penalty=0.0, early_stopping="never")
    found = written(model_of(probabilities), strategy, Limits(most), texts=12)
    expected = all_texts(probabilities, most)[:12]
    np.testing.assert_allclose([text.score for text in found], np.log([likely for _, likely in expected]), rtol=1e-5)
    np.testing.assert_allclose([text.log_probability for text in found], [text.score for text in found], rtol=1e-5)
    assert {tuple(text.tokens) for text in found} == {tokens for tokens, _ in expected}
    assert len(found) == len(expected) and {text.ended for text in found} <= {True, False}


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(1), BeamSearch(5), Sample()], ids=str)
def test_a_text_may_end_before_its_first_word(strategy):
    sure = [[1, 0, 0, 0]] * 4
    for prompt in ("", "ab"):
        (text,) = written(model_of(sure), strategy, Limits(3), prompt=prompt)
        assert (text.text, text.tokens, text.ended) == (prompt, [END], True)
        assert text.log_probability == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(3), Sample()], ids=str)
def test_what_nothing_may_follow_ends_as_it_is(strategy):
    sure = [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    (text,) = written(model_of(sure), strategy, Limits(6, min_new_tokens=4))
    assert (text.tokens, text.ended) == ([1], False)
    (text,) = written(model_of(sure), strategy, Limits(6, no_repeat_ngrams=1))
    assert (text.tokens, text.ended) == ([1], False)  # the beginning was </s>, which may not stand twice


def test_rows_that_end_early_do_not_change_others():
    """A prompt whose texts end at once, beside others, and rows that fill the batch up."""
    model = model_of([[0.1, 0.9, 0, 0], [0.9, 0, 0.1, 0], [0.05, 0, 0.05, 0.9], [0.05, 0, 0.9, 0.05]])
    for strategy in (Greedy(), BeamSearch(2, early_stopping=True)):
        prompts = ["a", "b", "c", "aa", "ba"]
        together = model.generate(prompts, strategy, Limits(9), batch_size=4)
        for prompt, (text,) in zip(prompts, together, strict=True):
            assert text == written(model, strategy, Limits(9), prompt=prompt)[0]
        assert len({len(text.tokens) for (text,) in together}) > 1


def test_draws_have_the_frequencies_of_the_model():
    """First tokens of 2,000 texts; a chi-square of 2 degrees of freedom passes 13.8 once in a thousand."""
    first = [0, 0.5, 0.3, 0.2]
    texts = written(model_of([first, *[[1, 0, 0, 0]] * 3]), Sample(seed=5), Limits(2), texts=2000)
    counts = np.bincount([text.tokens[0] for text in texts], minlength=4)
    expected = 2000 * np.array(first)
    assert counts[0] == 0 and ((counts - expected)[1:] ** 2 / expected[1:]).sum() < 13.8
    assert all(text.tokens[1] == END for text in texts)
