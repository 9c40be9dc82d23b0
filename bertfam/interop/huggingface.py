"""Import and export of folders of Hugging Face's transformers, by each family's table."""

import dataclasses
import functools
import importlib
import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.end_tokens import end_tokens
from bertfam.errors import UserError
from bertfam.interop.safetensors import SINGLE, read_tensors, write_tensors
from bertfam.models import families
from bertfam.models.mapping import Entry, Family, LanguageModelFamily
from bertfam.storage.files import check_unused, new_folder, read_json
from bertfam.storage.paths import check_whole, local, to_path


def _tables(modules: Iterable[families.FamilyModule]) -> dict[str, Family]:
    """Import the modules of families; return the tables of those with Hugging Face folders, by model_type."""
    tables = [getattr(importlib.import_module(family.module), family.table) for family in modules if family.table]
    return {table.model_type: table for table in tables}


FAMILIES = _tables(families.FAMILIES)  # of the package
DTYPES = ("float32", "bfloat16")


class Imported(NamedTuple):
    """A model read from a folder.

    Attributes:
      config: the family's config.
      params: float32 NumPy arrays; the family's body, such as {"encoder": ...}, and the heads that the folder has.
      ignored: names of tensors that are not used, such as a fine-tuned classifier's.
    """

    config: Any
    params: dict[str, Any]
    ignored: tuple[str, ...]


def read(folder: str | Path) -> Imported:
    """Read config.json and the safetensors of a folder.

    Raises:
      UserError: when the folder is not complete, its model is not supported, or tensors do not fit its config.json.
    """
    folder = to_path(folder)
    check_whole(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder / 'config.json'} is missing: is {folder} a Hugging Face folder?")
    content = read_json(folder / "config.json")
    known_families = _known_families()
    family = known_families.get(str(content.get("model_type")))
    if family is None:
        known = ", ".join(known_families)
        raise UserError(
            f"{folder / 'config.json'}: model_type is {content.get('model_type')!r}, supported: {known}; for a family of your "
            "own give --module_import=MODULE (in Python, import it first)"
        )
    try:
        config = family.config_from_huggingface(content)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    tensors = _with_known_names(read_tensors(local(folder)), family, folder)
    config, tensors = _with_ties(config, tensors, family)

    entries = family.entries(config)
    parts = _largest(_present(entries, config, tensors, content, family) | family.needed(entries), family)
    entries = tuple(entry for entry in entries if entry.part in parts)
    needed = list(dict.fromkeys(name for entry in entries for name in entry.names(config.num_layers)))
    optional = {name for entry in entries if entry.optional for name in entry.names(config.num_layers)}
    missing = [name for name in needed if name not in tensors and name not in optional]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of {len(needed)} tensors, such as {missing[0]}, which its config.json asks for"
        )

    shapes = traverse_util.flatten_dict(shapes_of(config, parts), sep="/")
    params = {entry.ours: _gather(entry, config, tensors, shapes[entry.ours].shape, folder) for entry in entries}
    ignored = sorted(name for name in tensors if name not in set(needed))
    return Imported(config, traverse_util.unflatten_dict(params, sep="/"), tuple(ignored))


def with_vocabulary(config: Any, size: int, folder: str | Path) -> Any:
    """Return the config of a model read from a folder, for the `size` tokens of the folder's tokenizer.

    Embedding tables often have more rows than tokens; these rows are kept for export and never predicted.

    Raises:
      UserError: when there are more tokens than rows.
    """
    if size > config.vocab_size:
        raise UserError(
            f"{folder}: config.json says vocab_size {config.vocab_size} and the tokenizer has {size} tokens; "
            "put the tokenizer there that the model was trained with"
        )
    return config if size == config.vocab_size else dataclasses.replace(config, vocab_size=size, table_rows=config.vocab_size)


def write(
    folder: str | Path,
    config: Any,
    params: Mapping[str, Any],
    *,
    dtype: str = "float32",
    tokenizer_files: Iterable[Path] = (),
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Write a folder that `from_pretrained` loads without missing or unexpected keys; it is complete or absent.

    Args:
      folder: must not exist, or be empty.
      config: the family's config.
      params: arrays, unboxed; the heads in it decide the class.
      dtype: of the tensors, "float32" or "bfloat16".
      tokenizer_files: copied beside them.
      extra: further values of config.json, such as pad_token_id.

    Returns:
      the name of the class, such as "BertForPreTraining".

    Raises:
      UserError: when the folder is in use, the dtype is unknown, or no class has these heads.
    """
    family = family_of(config)
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    check_unused(folder)
    parts = frozenset(params)
    architecture = family.architectures.get(parts)
    if architecture is None:
        raise UserError(f"no {family.model_type} class of transformers has just the parts {', '.join(sorted(parts))}")

    content = family.config_to_huggingface(config) | {"architectures": [architecture], "torch_dtype": dtype}
    with new_folder(folder) as partial:
        write_tensors(partial / SINGLE, to_tensors(family, config, params), dtype)
        for path in tokenizer_files:
            shutil.copyfile(path, partial / path.name)
        text = json.dumps(content | dict(extra or {}), indent=2, sort_keys=True)
        (partial / "config.json").write_text(text + "\n", encoding="utf-8")
    return architecture


def writable(config: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of params that a class of transformers has together: all, or the most of them."""
    parts = _largest(frozenset(params), family_of(config))
    return {name: value for name, value in params.items() if name in parts}


def special_ids(config: Any, tokens: TokenIds) -> dict[str, int | None]:
    """Return the special token ids for config.json: padding, and for a generator the start and end of texts."""
    found: dict[str, int | None] = {"pad_token_id": tokens.pad}
    if isinstance(family_of(config), LanguageModelFamily):
        ends = end_tokens(config, tokens)
        found["eos_token_id"] = next(iter(ends.ids), None)
        # A decoder alone has read what ends the text before, where one begins.
        starts = {"bos_token_id": tokens.cls, "decoder_start_token_id": ends.start}
        found |= starts if config.has_encoder else {"bos_token_id": ends.start}
    return found


def pieces_before(config: Any, vocabulary: Vocabulary) -> list[str] | None:
    """Return the pieces that the tokenizer of a causal LM adds before a text; it adds none after it.

    None for other models, which use the control tokens of the vocabulary's layout.
    """
    if not isinstance(family_of(config), LanguageModelFamily) or config.has_encoder:
        return None
    start = end_tokens(config, vocabulary.token_ids).start
    return [] if config.start is None or start is None else vocabulary.pieces([start])


def family_of(config: Any) -> Family:
    """Return the family of a config; raise UserError if transformers has no such family."""
    for family in _known_families().values():
        if type(config) is family.config:
            return family
    raise UserError(f"transformers has no class for a {type(config).__name__}: a model like it cannot be written")


def _known_families() -> dict[str, Family]:
    """Return the tables of the package's families and of those from outside it, by model_type; the package's come first."""
    return FAMILIES | {name: table for name, table in _tables(families.registered()).items() if name not in FAMILIES}


def to_tensors(family: Family, config: Any, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convert a parameter tree to float32 tensors by their names in transformers."""
    flat = traverse_util.flatten_dict(params, sep="/")
    entries = [entry for entry in family.entries(config) if entry.part in params]
    left_over = sorted(set(flat) - {entry.ours for entry in entries})
    if left_over:
        raise ValueError(f"no entry of {family.model_type} maps {left_over[0]}")
    has_head = family.always_prefixed or any(not entry.theirs.startswith(family.prefix) for entry in entries)
    pieces: dict[str, dict[int, np.ndarray]] = {}
    axes: dict[str, int] = {}
    for entry in entries:
        array = np.asarray(jax.device_get(flat[entry.ours]), np.float32)
        layers, names = array if entry.stacked else array[None], entry.names(config.num_layers)
        if len(layers) == 1:  # shared, and written for each layer where files have them all
            layers = np.broadcast_to(layers, (len(names), *layers.shape[1:]))
        for name, layer in zip(names, layers, strict=True):
            name = name if has_head else name.removeprefix(family.prefix)
            pieces.setdefault(name, {})[entry.part_of[0]] = entry.to_theirs(layer, config.require_table_rows)
            axes[name] = entry.part_axis
    return {name: np.concatenate([found[place] for place in sorted(found)], axes[name]) for name, found in pieces.items()}


@functools.lru_cache(maxsize=16)
def shapes_of(config: Any, parts: frozenset[str]) -> dict[str, Any]:
    """Return the tree of `jax.ShapeDtypeStruct`s of a model's body and the heads that are named."""
    family = family_of(config)
    return jax.eval_shape(lambda key: nn.meta.unbox(family.init(config, key, parts)), jax.random.key(0))


def _with_known_names(tensors: dict[str, np.ndarray], family: Family, folder: Path) -> dict[str, np.ndarray]:
    """Return tensors by current names, with the prefix and without buffers; raise UserError if two of one name differ."""
    renamed: dict[str, np.ndarray] = {}
    bare = not any(name.startswith(family.prefix) for name in tensors)
    for name, tensor in tensors.items():
        if name.endswith(family.buffers):
            continue
        for old, new in family.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        name = family.prefix + name if bare else name
        if name in renamed and not np.array_equal(renamed[name], tensor):
            raise UserError(f"{folder}: there are two of {name}, with different values, and a model has one here")
        renamed[name] = tensor
    return renamed


def _with_ties(config: Any, tensors: dict[str, np.ndarray], family: Family) -> tuple[Any, dict[str, np.ndarray]]:
    """Resolve second copies as transformers does: equal ones are one tensor, a head with other values is untied."""
    tensors = dict(tensors)
    head, table = family.tied
    if config.tie_embeddings and head in tensors and table in tensors:
        if np.array_equal(tensors[head], tensors[table]):
            del tensors[head]
        else:
            config = dataclasses.replace(config, tie_embeddings=False)
    for used, written in family.aliases.items():
        if config.tie_embeddings and used in tensors:
            tensors[written] = tensors.pop(used)
        elif not config.tie_embeddings and written in tensors:
            tensors.setdefault(used, tensors[written])
    return config, tensors


def _present(
    entries: Iterable[Entry], config: Any, tensors: Collection[str], content: Mapping[str, Any], family: Family
) -> frozenset[str]:
    """Return the parts that the tensors belong to.

    If config.json names a class that is not supported, such as one with a classifier, an incomplete head may belong to another
    head, so only complete parts count.
    """
    stated = content.get("architectures") or []
    foreign = bool(stated) and set(map(str, stated)).isdisjoint(family.architectures.values())
    names: dict[str, set[str]] = {}
    for entry in entries:
        names.setdefault(entry.part, set()).update(entry.names(config.num_layers))
    return frozenset(part for part, own in names.items() if (own <= set(tensors) if foreign else not own.isdisjoint(tensors)))


def _largest(present: frozenset[str], family: Family) -> frozenset[str]:
    """Return the parts of the largest class within `present`; of equally large ones, the first in the family's table."""
    return max((parts for parts in family.architectures if parts <= present), key=len)


def _gather(entry: Entry, config: Any, tensors: Mapping[str, np.ndarray], shape: tuple[int, ...], folder: Path) -> np.ndarray:
    one = shape[1:] if entry.stacked else shape
    # the shape that the tensor must have, by the way back
    place, parts = entry.part_of
    own = entry.to_theirs(np.broadcast_to(np.float32(0), one), config.require_table_rows).shape
    expected = tuple(size * (parts if axis == entry.part_axis else 1) for axis, size in enumerate(own))
    layers = []
    for name in entry.names(config.num_layers):
        tensor = tensors.get(name, np.zeros(expected, np.float32)) if entry.optional else tensors[name]
        if tensor.shape != expected:
            raise UserError(f"{folder}: {name} has shape {tensor.shape}, and config.json asks for {expected}")
        layers.append(entry.to_ours(np.split(tensor, parts, entry.part_axis)[place], one))
    return np.stack(layers) if entry.stacked else layers[0]
