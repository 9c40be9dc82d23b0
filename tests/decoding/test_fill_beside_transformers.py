"""`bertfam fill` on an exported folder, beside transformers' own pipeline on it."""

import json

import numpy as np
import pytest

from bertfam.cli import main

TEXTS = ["The [MASK] statement is used in a loop.", "A [MASK] is a sequence of [MASK], as in [MASK]."]


def test_the_pipeline_gives_the_same_tokens_and_probabilities(random_model, capsys):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    assert main(["fill", f"--model_dir={random_model}", "--json", *TEXTS]) == 0
    ours = json.loads(capsys.readouterr().out)
    pipeline = transformers.pipeline("fill-mask", model=str(random_model), device="cpu")
    for text, filled in zip(TEXTS, ours, strict=True):
        theirs = pipeline(text, top_k=5)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        assert len(theirs) == len(filled["masks"]) == text.count("[MASK]")
        for candidates, mask in zip(theirs, filled["masks"], strict=True):
            assert [found["token"] for found in candidates] == [found["token_id"] for found in mask["predictions"]]
            expected = [found["score"] for found in candidates]
            np.testing.assert_allclose([found["probability"] for found in mask["predictions"]], expected, atol=1e-4)
