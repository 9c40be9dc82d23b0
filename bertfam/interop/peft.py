"""Export of low-rank adapters in the format of the library peft: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.interop.folders import is_huggingface
from bertfam.interop.safetensors import write_tensors
from bertfam.layers.dense import ADAPTER_IN, ADAPTER_OUT
from bertfam.models.mapping import Family
from bertfam.objectives.fine_tuning.lora import ADAPTERS, Lora, without_adapters
from bertfam.storage.paths import to_path

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_BODIES = frozenset({"embeddings", "encoder", "decoder"})
_PREFIX = "base_model.model."  # of all names in the file
# By the end of a class's name: peft's name of its task.
_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
# A base that was exported in bfloat16 differs from that of training by its rounding.
_ROUNDING = 2**-8

Factors = tuple[np.ndarray, np.ndarray]  # A [rank, inputs] and B [outputs, rank]


def write(
    folder: Path, config: Any, params: Mapping[str, Any], lora: Lora, *, base: str, dtype: str, extra: Mapping[str, Any]
) -> str:
    """Write the adapters and the head of a network, and the config.json of the class that they belong to.

    Where one tensor of transformers holds several of our kernels (GPT-2's c_attn, ModernBERT's Wqkv and Wi), their adapters
    become one of the sum of their ranks, whose B is block diagonal: the same product.

    Args:
      folder: an existing folder.
      config: the family's config.
      params: arrays, unboxed: those of the network and its head, and "adapters".
      lora: rank and scale of the adapters.
      base: folder or name of the model that the adapters belong to, as adapter_config.json states it.
      dtype: of the tensors, "float32" or "bfloat16".
      extra: further values of config.json, such as the names of the labels.

    Returns:
      the name of the class, such as "BertForSequenceClassification".

    Raises:
      UserError: if no class has these parts, or a kernel is no linear layer in it.
    """
    family, network = huggingface.family_of(config), without_adapters(params)
    architecture = huggingface.architecture_of(family, network)
    adapters = _module_adapters(family, config, params, architecture)
    tensors: dict[str, np.ndarray] = {}
    for module, (inner, outer) in adapters.items():
        tensors |= {f"{_PREFIX}{module}.lora_A.weight": inner, f"{_PREFIX}{module}.lora_B.weight": outer}
    head = _head_tensors(family, config, network)
    tensors |= {_PREFIX + name: tensor for name, tensor in head.items()}
    write_tensors(folder / TENSORS, tensors, dtype)
    huggingface.write_config(folder, config, architecture, dtype, extra)

    ranks = {module: len(inner) for module, (inner, _) in adapters.items()}
    joint = {module: rank for module, rank in ranks.items() if rank != lora.rank}
    content = {
        "peft_type": "LORA",
        "task_type": next((task for ending, task in _TASKS.items() if architecture.endswith(ending)), None),
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": _is_conv1d(family, config, params),
        "target_modules": sorted(ranks),
        "modules_to_save": _saved_modules(family, head),
        "rank_pattern": joint,
        "alpha_pattern": {module: lora.scale * rank for module, rank in joint.items()},
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return architecture


def check_base(base: str, params: Mapping[str, Any]) -> None:
    """Raise UserError if a folder on this machine holds no model, or another one than the adapters were trained on.

    Args:
      base: the folder; a name on the Hugging Face hub is not checked.
      params: arrays, unboxed: those of the network, and "adapters".
    """
    folder = to_path(base)
    if (folder / "config.gin").is_file():
        raise UserError(
            f"--adapter_of={base} is a model folder of bertfam, which peft does not read: name the folder that "
            f"`bertfam export --model_dir={base} --output=DIR` writes"
        )
    if not is_huggingface(folder):
        if folder.exists() or base.count("/") > 1 or base.startswith((".", "/", "~")):
            raise UserError(f"--adapter_of={base} is no Hugging Face folder: name the model that the run started from")
        return
    own, theirs = (traverse_util.flatten_dict(tree, sep="/") for tree in (dict(params), huggingface.read(folder).params))
    for path in _adapted_kernels(params[ADAPTERS]):
        kernel, other = np.asarray(own[path]), theirs.get(path)
        if other is None or other.shape != kernel.shape or not np.allclose(other, kernel, rtol=_ROUNDING, atol=0):
            raise UserError(
                f"--adapter_of={base}: {path} is not that of the network that the adapters were trained on: name the model "
                "that the run started from (--init_from)"
            )


def _adapted_kernels(adapters: Mapping[str, Any]) -> list[str]:
    """Return the paths of the kernels that have adapters."""
    return sorted("/".join((*path[:-1], "kernel")) for path in traverse_util.flatten_dict(adapters) if path[-1] == ADAPTER_IN)


def _module_adapters(family: Family, config: Any, params: Mapping[str, Any], architecture: str) -> dict[str, Factors]:
    """Return the factors of each module's adapter by the module's name."""
    factors = {
        path: np.asarray(jax.device_get(value), np.float32)
        for path, value in traverse_util.flatten_dict(params[ADAPTERS], sep="/").items()
    }
    parts: dict[str, dict[int, Factors]] = {}
    for entry, names in huggingface.written_entries(family, config, without_adapters(params)):
        path = entry.ours.removesuffix("kernel")
        if path + ADAPTER_IN not in factors:
            continue
        inner, outer = (huggingface.layers_of(factors[path + name], len(names)) for name in (ADAPTER_IN, ADAPTER_OUT))
        for name, first, second in zip(names, inner, outer, strict=True):
            if not name.endswith(".weight"):
                raise UserError(
                    f"{name} is no linear layer in transformers' {architecture}, so peft has no adapter for it: export the "
                    "merged model, without --adapter_of"
                )
            # [*inputs, rank] -> [rank, inputs], [rank, *outputs] -> [outputs, rank]
            matrices = first.reshape(-1, first.shape[-1]).T, second.reshape(second.shape[0], -1).T
            parts.setdefault(name.removesuffix(".weight"), {})[entry.part_of[0]] = matrices
    return {module: _joined([found[place] for place in sorted(found)]) for module, found in parts.items()}


def _joined(factors: list[Factors]) -> Factors:
    """Return the factors of one adapter whose outputs are those of several, one after the other."""
    inner = np.concatenate([first for first, _ in factors])
    outer = np.zeros((sum(len(second) for _, second in factors), len(inner)), np.float32)
    row = column = 0
    for first, second in factors:
        outer[row : row + len(second), column : column + len(first)] = second
        row, column = row + len(second), column + len(first)
    return inner, outer


def _is_conv1d(family: Family, config: Any, params: Mapping[str, Any]) -> bool:
    """Return whether the adapted tensors are [inputs, outputs], as those of GPT-2's Conv1D."""
    adapted = set(_adapted_kernels(params[ADAPTERS]))
    return any(entry.layout.startswith("conv1d") for entry in family.entries(config) if entry.ours in adapted)


def _head_tensors(family: Family, config: Any, network: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of the head, a pooler included, by their names in the class."""
    names = {
        name
        for entry, names in huggingface.written_entries(family, config, network)
        if entry.part not in _BODIES
        for name in names
    }
    return {name: tensor for name, tensor in huggingface.to_tensors(family, config, network).items() if name in names}


def _saved_modules(family: Family, names: Collection[str]) -> list[str]:
    """Return the modules of the head: all of it, and in the network's own namespace, such as a pooler, the layer."""
    prefix = family.prefix
    return sorted({name.rpartition(".")[0] if prefix and name.startswith(prefix) else name.partition(".")[0] for name in names})
