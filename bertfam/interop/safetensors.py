"""Tensors of a Hugging Face folder: safetensors in one file or in shards, never pickle."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy has no bfloat16 without it)
import numpy as np
import safetensors
from safetensors.numpy import save_file

from bertfam.errors import UserError, warn_once
from bertfam.storage.files import umask
from bertfam.storage.untrusted import check_file, file_in, read_json, typed

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LFS_POINTER = b"version https://git-lfs"
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """Tensor of a safetensors file, of which only the header has been read.

    Attributes:
      path: the file.
      name: name of the tensor in the file.
      shape: shape, which the header and the size of the file agree on.
      dtype: dtype by the name of safetensors, such as "BF16".
      file: the open file.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Any

    def read(self) -> np.ndarray:
        """Read the tensor as float32; bfloat16 and float16 are widened, which is exact.

        Raises:
          UserError: when it does not hold floating-point numbers, or one that float32 does not have.
        """
        if self.dtype not in _FLOATS:
            raise UserError(
                f"{self.path}: {self.name} has the type {self.dtype}, and only {', '.join(_FLOATS)} are supported: "
                "save the model without quantization"
            )
        with np.errstate(over="ignore"):  # of float64
            values = np.asarray(self.file.get_tensor(self.name), np.float32)
        if not np.isfinite(values).all():
            raise UserError(
                f"{self.path}: {self.name} has values that are NaN, infinite or above {np.finfo(np.float32).max:.1e}: the model "
                "is damaged, or its training diverged; fetch another version of it"
            )
        return values


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a folder, by name, without reading them.

    The single file comes before the shards of an index, as in transformers.

    Raises:
      UserError: when there is no safetensors file, or one is broken, missing or outside the folder.
    """
    weight_map: dict[str, str] = {}
    if (folder / SINGLE).exists():
        files = [folder / SINGLE]
        if (folder / INDEX).exists():
            warn_once(f"{folder} has {SINGLE} and {INDEX}: {SINGLE} is read, as by transformers, and the shards are ignored")
    elif (folder / INDEX).exists():
        weight_map = typed(read_json(folder / INDEX), "weight_map", dict, folder / INDEX) or {}
        if not weight_map or not all(isinstance(name, str) for name in weight_map.values()):
            raise UserError(f"{folder / INDEX} has no weight_map from tensors to files: fetch it again")
        files = [file_in(folder, name) for name in sorted(set(weight_map.values()))]
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        if pickled:
            raise UserError(
                f"{folder} has its weights only in {pickled[0]}, a pickle, which can run any code when it is read: "
                "save it again as safetensors (in transformers: model.save_pretrained(DIR))"
            )
        raise UserError(f"{folder} has no {SINGLE}: fetch the weights too, as safetensors")

    tensors: dict[str, StoredTensor] = {}
    for path in files:
        tensors.update(_open_file(path))
    missing = sorted(set(weight_map) - set(tensors))
    if missing:
        raise UserError(f"{folder / INDEX} names {missing[0]}, which {weight_map[missing[0]]} does not hold")
    return tensors


def _open_file(path: Path) -> dict[str, StoredTensor]:
    if not path.exists():
        raise UserError(f"{path} is missing: its folder is not complete")
    check_file(path, max_bytes=None)
    try:
        file = safetensors.safe_open(path, framework="np")
        tensors = {}
        for name in file.keys():  # noqa: SIM118  (it is no dict)
            header = file.get_slice(name)
            tensors[name] = StoredTensor(path, name, tuple(header.get_shape()), header.get_dtype(), file)
    except safetensors.SafetensorError as error:
        with path.open("rb") as start:
            if start.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise UserError(f"{path} is a pointer of Git LFS, not the weights: run git lfs pull in its folder") from error
        raise UserError(f"{path} is no whole safetensors file ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from error
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], dtype: str) -> None:
    """Write one safetensors file in "float32" or "bfloat16"."""
    kind = np.dtype(dtype)
    contiguous = {name: np.ascontiguousarray(tensor, dtype=kind) for name, tensor in tensors.items()}
    # transformers refuses files that do not say which framework they are for
    save_file(contiguous, path, metadata={"format": "pt"})
    path.chmod(0o666 & ~umask())  # save_file makes files that only their owner reads
