"""Objectives of decoders and encoder-decoders in run files, with any order of the included files."""

import re

import pytest

from bertfam.config import load
from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.bart.infilling import TextInfilling
from bertfam.corruption.bart.token_noise import TokenDeletion, TokenMasking
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.span_corruption import T5_OBJECTIVES
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, WholeDocuments
from bertfam.errors import UserError
from bertfam.objectives.causal_lm import CausalLm

MODEL = "models/gpt2_small.gin"


@pytest.mark.parametrize("name", T5_OBJECTIVES)
def test_t5_objectives(name):
    data = load([f"objectives/t5_{name}.gin", "runs/defaults.gin", MODEL]).build("TextData")
    assert data.corruption == T5_OBJECTIVES[name]
    # Documents follow each other without separators, except where whole documents are required.
    whole = name in ("prefix_lm", "deshuffling")
    assert data.rows == (WholeDocuments() if whole else Chunks(separated=False))
    assert data.shape(512)[0::3] == (512, data.corruption.target_length(512))


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("bart", Denoising()),
        ("bart_text_infilling", Denoising(0.0, TextInfilling())),
        ("bart_token_masking", Denoising(0.0, TokenMasking())),
        ("bart_token_deletion", Denoising(0.0, TokenDeletion())),
        ("bart_sentence_permutation", Denoising(1.0, None)),
        ("bart_document_rotation", Denoising(0.0, None, rotate=1.0)),
    ],
)
def test_bart_objectives(name, noise):
    data = load([f"objectives/{name}.gin", "runs/defaults.gin", MODEL]).build("TextData")
    assert data.corruption == noise and type(data.rows) is DocSentences and data.shape(1024)[0::3] == (1024, 1024)


@pytest.mark.parametrize(("name", "rows"), [("causal_lm", Chunks()), ("causal_lm_packed", Packed(WholeDocuments()))])
def test_causal_lm_objectives(name, rows):
    run = load([MODEL, f"objectives/{name}.gin", "runs/defaults.gin"]).build("Run")
    assert type(run.objective) is CausalLm and (run.data.rows, run.data.corruption) == (rows, NextTokens())
    assert run.shape(0).targets == run.stages[0].length


def test_masking_follows_its_bindings():
    data = load(["models/bert_tiny.gin", "objectives/mlm.gin", "runs/defaults.gin"], ["BertMasking.rate = 0.3"]).build("TextData")
    assert data.corruption == BertMasking(rate=0.3)


_LM = "objectives/causal_lm.gin"


@pytest.mark.parametrize(
    ("root", "files", "changes", "message"),
    [
        (
            "Run",
            ["objectives/t5_random_spans.gin"],
            ["Run.objective = @CausalLm()", "CausalLm.model = %MODEL"],
            "SpanCorruption have encoder_input_tokens, which CausalLm does not read: set TextData.corruption to @NextTokens()",
        ),
        (
            "Run",
            [_LM],
            ["TextData.corruption = @BertMasking()"],
            "CausalLm reads decoder_input_tokens, which rows of BertMasking lack: set TextData.corruption to @NextTokens()",
        ),
        (
            "Run",
            ["models/bert_tiny.gin", "objectives/mlm.gin"],
            ["TextData.rows = @Chunks()", "TextData.corruption = @NextTokens()"],
            "Mlm reads encoder_input_tokens, which rows of NextTokens lack: set TextData.corruption to @BertMasking()",
        ),
        (
            "TextData",
            [_LM],
            ["TextData.rows = @SentencePairs()"],
            "NextTokens requires rows of running text, not SentencePairs: set TextData.rows = @Chunks()",
        ),
        (
            "TextData",
            [_LM],
            ["TextData.rows = @Packed()", "Packed.rows = @SentencePairs()"],
            "requires rows of running text, not SentencePairs: set Packed.rows = @WholeDocuments()",
        ),
        ("TextData", [_LM], ["Chunks.separated = False"], "predicts where documents end, but Chunks.separated is False"),
        (
            "TextData",
            ["objectives/bart.gin"],
            ["TextData.rows = @Packed()", "Packed.rows = @DocSentences()"],
            "Denoising makes rows of one example each, but packed rows have several: set TextData.rows = @DocSentences()",
        ),
        (
            "Run",
            [_LM, "tasks/text_to_text.gin"],
            [],
            "TextToText is for pairs of inputs and targets, which need an encoder-decoder, and CausalLm trains none",
        ),
        ("Run", ["objectives/mlm.gin"], [], "use an objective for Gpt2Config, such as objectives/causal_lm.gin"),
        (
            "Run",
            ["models/t5_1_1_tiny.gin", "objectives/mlm_nsp.gin"],
            [],
            "use an objective for T5Config, such as objectives/t5_random_spans.gin",
        ),
        (
            "Run",
            ["models/bert_tiny.gin", _LM],
            [],
            "use an objective for BertConfig, such as objectives/mlm.gin",
        ),
    ],
)
def test_conflicting_bindings_are_reported_with_a_fix(root, files, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        load([MODEL, *files, "runs/defaults.gin"], [*changes, "Stage.length = 128"]).build(root)
