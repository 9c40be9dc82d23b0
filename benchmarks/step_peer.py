"""Training steps of Hugging Face's models in PyTorch: the peer of `benchmarks.step`, on the same rows.

Sizes and dropout are those of bertfam's config, written as transformers' config.json. bfloat16 autocast over float32 weights on
GPUs, float32 on CPUs, torch.compile, fused AdamW, the vocabulary head on the masked positions only.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import training_step
from benchmarks.training_step import Case, time_updates
from bertfam.features import SENTENCES
from bertfam.interop.huggingface import family_of
from bertfam.sharding.chips import chip_of_kind

PEER = "Hugging Face"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "none")
SDPA = {
    "default": None,
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}
Rows = Mapping[str, torch.Tensor]
_RTD_WEIGHT = 50.0
_LABELS = SENTENCES["next"].labels
# model_types whose code fails under autocast (transformers 5.24): their weights are bfloat16, which takes less time and memory.
_WITHOUT_AUTOCAST = {"big_bird"}
# Positions of RoBERTa and Longformer begin behind it; no token of the rows has this id.
_PADDING_ID = 1


def config_for_huggingface(model: Any, **changes: Any) -> Any:
    """Return the config of transformers for a config of ours, with changed fields."""
    family = family_of(model)
    content = family.config_to_huggingface(model) | {"pad_token_id": _PADDING_ID} | changes
    return transformers.AutoConfig.for_model(family.model_type, **{k: v for k, v in content.items() if k != "model_type"})


def _at(states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Gather states [batch, length, embed] at positions [batch, predictions]."""
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


# model_type -> the layers between the hidden states and the logits of a masked language model
_HEADS: Mapping[str, Callable[[Any], nn.Module]] = {
    "bert": lambda model: model.cls,
    "big_bird": lambda model: model.cls,
    "roberta": lambda model: model.lm_head,
    "longformer": lambda model: model.lm_head,
    "modernbert": lambda model: nn.Sequential(model.head, model.decoder),
    "electra": lambda model: nn.Sequential(model.generator_predictions, model.generator_lm_head),
}


class MaskedLm(nn.Module):
    """Masked language model whose head sees the masked positions only."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        self.model = transformers.AutoModelForMaskedLM.from_config(config_for_huggingface(objective.model))
        self.body, self.head = self.model.base_model, _HEADS[self.model.config.model_type](self.model)

    def forward(self, rows: Rows) -> torch.Tensor:
        """Compute the loss of a batch."""
        inputs: dict[str, Any] = {"input_ids": rows["encoder_input_tokens"]}
        if "full_attention" in rows:
            masks = {name: rows[name] for name in ("full_attention", "sliding_attention")}
            inputs |= {"position_ids": rows["encoder_positions"], "attention_mask": masks}
        states = self.body(**inputs)[0]
        return _cross_entropy(self.head(_at(states, rows["masked_positions"])), rows["masked_target_tokens"])


class MaskedLmAndSentences(nn.Module):
    """Masked language model with next-sentence prediction, as BERT was trained."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        self.model = transformers.AutoModelForPreTraining.from_config(config_for_huggingface(objective.model))

    def forward(self, rows: Rows) -> torch.Tensor:
        """Compute the loss of a batch."""
        states, pooled = self.model.base_model(rows["encoder_input_tokens"], token_type_ids=rows["encoder_token_type_ids"])[:2]
        words, relations = self.model.cls(_at(states, rows["masked_positions"]), pooled)
        return _cross_entropy(words, rows["masked_target_tokens"]) + _cross_entropy(relations, rows[_LABELS])


class ReplacedTokens(nn.Module):
    """ELECTRA: a generator fills the masked positions, a discriminator finds the replaced tokens; they share the embeddings."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        discriminator, generator = objective.networks.values()
        self.model = transformers.AutoModelForPreTraining.from_config(config_for_huggingface(discriminator))
        self.generator = transformers.AutoModelForMaskedLM.from_config(config_for_huggingface(generator))
        self.generator.base_model.embeddings = self.model.base_model.embeddings
        self.generator.generator_lm_head.weight = self.model.base_model.embeddings.word_embeddings.weight
        self.head = _HEADS[self.generator.config.model_type](self.generator)

    def forward(self, rows: Rows) -> torch.Tensor:
        """Compute the loss of a batch."""
        inputs, positions, targets = rows["encoder_input_tokens"], rows["masked_positions"], rows["masked_target_tokens"]
        logits = self.head(_at(self.generator.base_model(inputs)[0], positions))
        with torch.no_grad():
            noise = torch.rand_like(logits, dtype=torch.float32).clamp_min(1e-9)
            samples = (logits - torch.log(-torch.log(noise))).argmax(-1)
            original = inputs.scatter(1, positions, targets)
            shown = inputs.scatter(1, positions, samples)
        found = self.model(shown).logits.float()
        replaced = functional.binary_cross_entropy_with_logits(found, (shown != original).float())
        return _cross_entropy(logits, targets) + _RTD_WEIGHT * replaced


class CausalLm(nn.Module):
    """Decoder that predicts every next token; its vocabulary is padded to a multiple of 64, which makes it faster."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        size = -(-objective.model.require_vocab_size // 64) * 64
        self.model = transformers.AutoModelForCausalLM.from_config(config_for_huggingface(objective.model, vocab_size=size))

    def forward(self, rows: Rows) -> torch.Tensor:
        """Compute the loss of a batch."""
        return _cross_entropy(self.model(rows["decoder_input_tokens"]).logits, rows["decoder_target_tokens"])


class SequenceToSequence(nn.Module):
    """Encoder-decoder that predicts the targets."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        self.model = transformers.AutoModelForSeq2SeqLM.from_config(config_for_huggingface(objective.model))

    def forward(self, rows: Rows) -> torch.Tensor:
        """Compute the loss of a batch."""
        out = self.model(rows["encoder_input_tokens"], decoder_input_ids=rows["decoder_input_tokens"])
        return _cross_entropy(out.logits, rows["decoder_target_tokens"])


# name of bertfam's objective -> the peer's model
_MODELS: Mapping[str, type[nn.Module]] = {
    "Mlm": MaskedLm,
    "MlmNsp": MaskedLmAndSentences,
    "Electra": ReplacedTokens,
    "CausalLm": CausalLm,
    "SequenceToSequence": SequenceToSequence,
}


def _with_masks(rows: dict[str, torch.Tensor], window: int) -> dict[str, torch.Tensor]:
    """Add the masks bool[batch, 1, length, length] of packed rows: tokens see their own segment, and at most `window` tokens."""
    ids = rows["encoder_segment_ids"]
    same = (ids[:, None, :, None] == ids[:, None, None, :]).contiguous()
    places = torch.arange(ids.shape[1], device=ids.device)
    near = (places[:, None] - places[None, :]).abs() <= window // 2
    return rows | {"full_attention": same, "sliding_attention": same & near}


def missing(device: str) -> str | None:
    """Return the reason why the peer cannot run on a device, "cuda" or "cpu"; None if it can."""
    return "torch finds no CUDA device" if device == "cuda" and not torch.cuda.is_available() else None


def measure(
    case: Case,
    steps: int,
    more: Sequence[str] = (),
    *,
    device: str = "cuda",
    mode: str = "default",
    sdpa: str = "default",
    wait: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Compile and time the peer's training step of a case.

    Args:
      case: the case.
      steps: number of updates of a round.
      more: further bindings (see `Case.run`).
      device: "cuda" or "cpu".
      mode: mode of torch.compile; "none" does not compile.
      sdpa: one of `SDPA`, the order in which PyTorch tries attention kernels.
      wait: called between compiling and timing.

    Returns:
      The figures, which JSON can hold.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    run = case.run(more)
    objective: Any = run.objective
    arrays = training_step.host_rows(run)
    rows = {
        name: torch.from_numpy(values.copy()).to(device, torch.int64 if values.dtype.kind == "i" else torch.float32)
        for name, values in arrays.items()
    }
    if "encoder_positions" in rows:
        rows = _with_masks(rows, objective.model.window)
    model: Any = _MODELS[type(objective).__name__](objective).to(device).train()
    is_narrow = device == "cuda" and model.model.config.model_type in _WITHOUT_AUTOCAST
    has_autocast = device == "cuda" and not is_narrow
    if is_narrow:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled: Any = model if mode == "none" else torch.compile(model, mode=None if mode == "default" else mode)
    kernels = SDPA[sdpa]
    loss = torch.zeros(())

    def update(count: int) -> None:
        nonlocal loss
        for _ in range(count):
            choice = nullcontext() if kernels is None else sdpa_kernel(kernels, set_priority=True)
            with torch.autocast(device, torch.bfloat16, enabled=has_autocast), choice:
                loss = compiled(rows)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    start = time.perf_counter()
    update(1)
    compiling = {"case": case.name, "side": PEER, "compile_seconds": time.perf_counter() - start}
    update(3)  # the later compilations of graphs with other strides, and CUDA graphs
    if device == "cuda":
        torch.cuda.empty_cache()  # for the processes beside this one
    wait()
    timing = time_updates(update, steps)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    chip = chip_of_kind(name)
    return (
        compiling
        | training_step.figures(run, arrays, timing, chip.flops if chip else None)
        | {
            "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
            "loss": loss.item(),
            "attention": f"{model.model.config._attn_implementation}, {sdpa} kernels",
            "execution": {"torch.compile": mode, "weights": "bfloat16" if is_narrow else "float32", "autocast": has_autocast},
            "chosen": {},
            "device": name,
        }
        | training_step.origin()
    )
