"""Tensors of a Hugging Face folder: safetensors in one file or in shards, never pickle."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  (NumPy has no bfloat16 without it)
import numpy as np
import safetensors
from safetensors.numpy import save_file

from bertfam.errors import UserError
from bertfam.storage.files import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Read all floating-point tensors of a folder as float32, by name; bfloat16 and float16 are widened, which is exact.

    Raises:
      UserError: when there is no safetensors file, or one is broken or missing.
    """
    if (folder / INDEX).exists():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise UserError(f"{folder / INDEX} has no weight_map from tensors to files: fetch it again")
        files = sorted(set(weight_map.values()))
    elif (folder / SINGLE).exists():
        weight_map, files = {}, [SINGLE]
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        if pickled:
            raise UserError(
                f"{folder} has its weights only in {pickled[0]}, a pickle, which can run any code when it is read: "
                "save it again as safetensors (in transformers: model.save_pretrained(DIR))"
            )
        raise UserError(f"{folder} has no {SINGLE}: fetch the weights too, as safetensors")

    tensors = {}
    for name in files:
        tensors.update(_read_file(folder / name))
    missing = sorted(set(weight_map) - set(tensors))
    if missing:
        raise UserError(f"{folder / INDEX} names {missing[0]}, which {weight_map[missing[0]]} does not hold")
    return tensors


def _read_file(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise UserError(f"{path} is missing: its folder is not complete")
    tensors = {}
    try:
        with safetensors.safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  (it is no dict)
                tensor = file.get_tensor(name)
                tensors[name] = tensor if np.issubdtype(tensor.dtype, np.integer) else tensor.astype(np.float32)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is no whole safetensors file ({error}): fetch it again") from error
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], dtype: str) -> None:
    """Write one safetensors file in "float32" or "bfloat16"."""
    kind = np.dtype(dtype)
    contiguous = {name: np.ascontiguousarray(tensor, dtype=kind) for name, tensor in tensors.items()}
    # transformers refuses files that do not say which framework they are for
    save_file(contiguous, path, metadata={"format": "pt"})
