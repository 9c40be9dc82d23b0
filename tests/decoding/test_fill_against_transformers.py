"""Fill command on an exported folder, compared with the pipeline of transformers."""

import json

import numpy as np
import pytest

from bertfam.cli import main

TEXTS = ["The [MASK] statement is used in a loop.", "A [MASK] is a sequence of [MASK], as in [MASK]."]


def test_pipeline_of_transformers_gives_the_same_tokens_and_probabilities(random_model, capsys):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    assert main(["fill", f"--model_dir={random_model}", "--json", *TEXTS]) == 0
    filled_texts = json.loads(capsys.readouterr().out)
    pipeline = transformers.pipeline("fill-mask", model=str(random_model), device="cpu")
    for text, filled in zip(TEXTS, filled_texts, strict=True):
        theirs = pipeline(text, top_k=5)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        assert len(theirs) == len(filled["masks"]) == text.count("[MASK]")
        for candidates, mask in zip(theirs, filled["masks"], strict=True):
            assert [candidate["token"] for candidate in candidates] == [
                candidate["token_id"] for candidate in mask["predictions"]
            ]
            expected = [candidate["score"] for candidate in candidates]
            np.testing.assert_allclose([candidate["probability"] for candidate in mask["predictions"]], expected, atol=1e-4)
