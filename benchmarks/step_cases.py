"""Cases of `benchmarks.step`: published models, packed rows, and rows of 1,024 to 16,384 tokens."""

from typing import Any

from benchmarks.training_step import Case

_BERT = ("runs/bert_base.gin", "objectives/mlm.gin")
_BERT_LARGE = ("runs/bert_base.gin", "models/bert_large.gin", "objectives/mlm.gin")
_ELECTRA = ("runs/electra_small.gin", "models/electra_base.gin")
_MODERNBERT = ("runs/modernbert_base.gin",)
# name in "long-NAME-LENGTH" -> model file, its config
LONG_MODELS = {
    "dense": ("roberta_base", "RobertaConfig"),
    "bigbird": ("bigbird_base", "BigBirdConfig"),
    "longformer": ("longformer_base", "LongformerConfig"),
    "modernbert": ("modernbert_base", "ModernBertConfig"),
}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
LONG_TOKENS = 32_768


def _case(name: str, files: tuple[str, ...], rows: int, length: int, *bindings: str, **options: Any) -> Case:
    sizes = ("Run.stages = (@Stage(),)", f"BATCH_SIZE = {rows}", f"Stage.length = {length}")
    return Case(name, files, (*sizes, *bindings), **options)


def long_case(name: str, length: int) -> Case:
    """Return the step of one of `LONG_MODELS` on full, unpacked rows of a length, `LONG_TOKENS` tokens in all."""
    file, config = LONG_MODELS[name]
    files = (f"models/{file}.gin", "objectives/mlm.gin", "runs/defaults.gin")
    settings = (f"{config}.max_length = {max(LENGTHS)}", "Run.mesh = @MeshShape()", "Run.microbatches = 1")
    return _case(f"long-{name}-{length}", files, LONG_TOKENS // length, length, *settings, vocabulary=32_000)


CASES = {
    case.name: case
    for case in (
        _case("bert-base-128", _BERT, 256, 128),
        _case("bert-base-512", _BERT, 64, 512),
        _case("bert-base-512-packed", _BERT, 64, 512, "TextData.rows = @Packed()"),
        _case("bert-large-512", _BERT_LARGE, 32, 512),
        _case("gpt2-1024", ("runs/gpt2_small.gin",), 32, 1024, vocabulary=50_257),
        _case("t5-1.1-base-512", ("runs/t5_1_1_base.gin",), 48, 512, vocabulary=32_128),
        _case("roberta-base-4096", ("runs/roberta_base.gin",), 4, 4096, "RobertaConfig.max_length = 4096", vocabulary=50_265),
        _case("electra-base-128", _ELECTRA, 128, 128),
        Case("bert-base-as-shipped", ("runs/bert_base.gin",), drops_out=True),
        _case("modernbert-base-1024-packed", _MODERNBERT, 32, 1024, vocabulary=50_368),
        _case("modernbert-base-8192-packed", _MODERNBERT, 4, 8192, vocabulary=50_368),
        # The peer has no Muon.
        _case("quickstart", ("runs/quickstart.gin",), 16, 64, "Run.optimizer = @AdamW()", vocabulary=4096),
        *(long_case(name, length) for name in LONG_MODELS for length in LENGTHS),
    )
}
