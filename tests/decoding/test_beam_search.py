"""Greedy decoding and beam search on table models, token by token equal to transformers."""

import functools

import jax
import numpy as np
import pytest
from table_models import make_prompts, prefill, stepper, table, torch_model

from bertfam.decoding.beam_search import search
from bertfam.decoding.sampling import sample
from bertfam.decoding.stepper import Ends
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits

SIZE, EOS, PAD = 37, 1, 36
LOGITS = table(0, SIZE, impossible=[PAD])
LOGITS[..., EOS] += 1.0
ROWS = [list(np.random.default_rng(row).integers(2, PAD, 1 + row % 7)) for row in range(20)]


ENDS = Ends((EOS,), PAD)


def generate(rows, strategy, limits, texts=1, logits=LOGITS, ends=ENDS):
    """Return the texts of each row as lists of ids, with their scores."""
    batch = make_prompts(rows, ends.fill)
    run = search if isinstance(strategy, BeamSearch) else functools.partial(sample, keys=None)
    decode = jax.jit(functools.partial(run, stepper(logits), strategy=strategy, limits=limits, ends=ends, texts=texts))
    result = jax.tree.map(np.asarray, decode(*prefill(logits, batch), batch))
    for tokens, lengths in zip(result.tokens.reshape(-1, limits.max_new_tokens), result.lengths.reshape(-1), strict=True):
        assert (tokens[lengths:] == ends.fill).all()
    return [
        [(row.tokens[place, : row.lengths[place]].tolist(), float(row.scores[place])) for place in np.flatnonzero(row.possible)]
        for row in (jax.tree.map(lambda leaf, at=at: leaf[at], result) for at in range(len(rows)))
    ]


@functools.cache
def model():
    return torch_model(LOGITS, eos=EOS, pad=PAD)


def generate_with_transformers(rows, strategy, limits, texts=1):
    torch = pytest.importorskip("torch")

    batch = make_prompts(rows, PAD)
    options = {"max_new_tokens": limits.max_new_tokens, "do_sample": False}
    if limits.min_new_tokens:
        options["min_new_tokens"] = limits.min_new_tokens
    if limits.no_repeat_ngrams:
        options["no_repeat_ngram_size"] = limits.no_repeat_ngrams
    if isinstance(strategy, BeamSearch):
        options |= {
            "num_beams": strategy.beams,
            "length_penalty": strategy.length_penalty,
            "early_stopping": strategy.early_stopping,
            "num_return_sequences": texts,
        }
    output = model().generate(
        torch.tensor(np.array(batch.tokens), dtype=torch.long),
        attention_mask=torch.tensor(np.array(batch.tokens != PAD), dtype=torch.long),
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    sequences = output.sequences[:, batch.tokens.shape[1] :].tolist()
    scores = getattr(output, "sequences_scores", None)
    scores = scores.tolist() if scores is not None else [None] * len(sequences)
    trimmed = [tokens[: tokens.index(PAD)] if PAD in tokens else tokens for tokens in sequences]
    pairs = list(zip(trimmed, scores, strict=True))
    return [pairs[at : at + texts] for at in range(0, len(pairs), texts)]


@pytest.mark.parametrize(
    ("strategy", "limits", "texts"),
    [
        (Greedy(), Limits(12), 1),
        (Greedy(), Limits(12, min_new_tokens=3, no_repeat_ngrams=1), 1),
        (BeamSearch(4), Limits(12), 4),
        (BeamSearch(4, length_penalty=0.0, early_stopping="never"), Limits(12, min_new_tokens=2), 2),
        (BeamSearch(5, length_penalty=2.0, early_stopping="never"), Limits(12), 3),
        (BeamSearch(5, length_penalty=-1.0, early_stopping=True), Limits(12, no_repeat_ngrams=2), 5),
        (BeamSearch(3, length_penalty=2.0), Limits(9, no_repeat_ngrams=3), 3),
    ],
    ids=str,
)
def test_texts_equal_those_of_transformers(strategy, limits, texts):
    own, reference = generate(ROWS, strategy, limits, texts), generate_with_transformers(ROWS, strategy, limits, texts)
    for row, (left, right) in enumerate(zip(own, reference, strict=True)):
        assert [tokens for tokens, _ in left] == [tokens for tokens, _ in right], row
        for (_, score), (_, expected) in zip(left, right, strict=True):
            assert expected is None or score == pytest.approx(expected, rel=1e-5)
    lengths = {len(tokens) for row in own for tokens, _ in row}
    assert len(lengths) > 1 and min(lengths) >= limits.min_new_tokens
