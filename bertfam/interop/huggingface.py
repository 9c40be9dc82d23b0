"""Import and export of folders of Hugging Face's transformers, by each family's table."""

import dataclasses
import functools
import importlib
import json
import math
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.prompts import prompt_format
from bertfam.errors import UserError, warn_once
from bertfam.interop.folders import model_folders_in
from bertfam.interop.safetensors import INDEX, SINGLE, StoredTensor, open_tensors, write_tensors
from bertfam.models import families, pruning
from bertfam.models.mapping import CLASSIFIER, CLASSIFIERS, Entry, Family, LanguageModelFamily, Wrapper
from bertfam.storage.files import check_unused, new_folder
from bertfam.storage.paths import check_whole, local, missing_folder, to_path
from bertfam.storage.untrusted import read_json, shown


def _tables(modules: Iterable[families.FamilyModule]) -> dict[str, Family]:
    """Import the modules of families; return the tables of those with Hugging Face folders, by model_type."""
    tables = [getattr(importlib.import_module(family.module), family.table) for family in modules if family.table]
    return {table.model_type: table for table in tables}


FAMILIES = _tables(families.FAMILIES)  # of the package
DTYPES = ("float32", "bfloat16")
_MAX_LAYERS = 10_000
_ADAPTER = "adapter_config.json"
_MERGE = "is an adapter, without its model; merge both (in peft: model.merge_and_unload().save_pretrained(DIR))"
_LOOKED_UP = ("pad_token_id", "decoder_start_token_id")  # in the embedding table, by transformers' classes


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


class _Opened(NamedTuple):
    """Folder whose tensors are open and not read.

    Attributes:
      config: the family's config.
      tensors: the tensors, by their current names.
      entries: the entries of the family's table for the parts that the folder has.
      parts: these parts.
    """

    config: Any
    tensors: Mapping[str, StoredTensor]
    entries: tuple[Entry, ...]
    parts: frozenset[str]


def inspect(folder: str | Path) -> tuple[Any, frozenset[str]]:
    """Return the config of the model of a folder, and the names of the parts that the folder has; raises as `read` does."""
    opened = _open(to_path(folder))
    return opened.config, opened.parts


def read(folder: str | Path) -> Imported:
    """Read config.json and the safetensors of a folder; a classifier is left out.

    Raises:
      UserError: when the folder is not complete, its model is not supported, or tensors do not fit its config.json.
    """
    folder = to_path(folder)
    opened = _open(folder)
    return _read_tensors(folder, opened, shapes_of(opened.config, opened.parts))


def find_classifier(folder: str | Path) -> str | None:
    """Return the part that is the classifier of the class in a folder's config.json, such as "classifier"; None without one."""
    path = to_path(folder) / "config.json"
    content = read_json(path)
    family = _family_named(content.get("model_type"), path)
    parts = _classifier_parts(family, content.get("architectures") or ())
    return next(iter(parts & CLASSIFIERS), None)


def inspect_classifier(folder: str | Path) -> tuple[Any, Mapping[str, Any]]:
    """Return the config of the model of a folder with a classifier, and config.json's content; raises as `read` does."""
    folder = to_path(folder)
    return _open(folder, with_classifier=True).config, read_json(folder / "config.json")


def read_classifier(folder: str | Path, shapes: Mapping[str, Any]) -> Imported:
    """Read a folder as `read` does, with its classifier.

    Args:
      folder: one whose class has a classifier, see `find_classifier`.
      shapes: tree of `jax.ShapeDtypeStruct`s of all parts of the class.
    """
    folder = to_path(folder)
    return _read_tensors(folder, _open(folder, with_classifier=True), shapes)


def _read_tensors(folder: Path, opened: _Opened, own_shapes: Mapping[str, Any]) -> Imported:
    """Read the tensors of an open folder into parameters of the given shapes."""
    config, tensors, entries, _ = opened
    needed = list(dict.fromkeys(name for entry in entries for name in entry.names(config.num_layers)))
    optional = {name for entry in entries if entry.optional for name in entry.names(config.num_layers)}
    missing = [name for name in needed if name not in tensors and name not in optional]
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} of {len(needed)} tensors, such as {missing[0]}, which its config.json asks for"
        )

    shapes = traverse_util.flatten_dict(own_shapes, sep="/")
    expected = {entry.ours: _expected_shape(entry, config, shapes[entry.ours].shape) for entry in entries}
    for entry in entries:
        _check_shapes(entry, config, tensors, expected[entry.ours], folder)
    params = {entry.ours: _gather(entry, config, tensors, shapes[entry.ours].shape, expected[entry.ours]) for entry in entries}
    ignored = sorted(tensors.keys() - set(needed))
    return Imported(config, traverse_util.unflatten_dict(params, sep="/"), tuple(ignored))


def _meant(folder: Path) -> str:
    """Return what to do about a path that is no Hugging Face folder."""
    if (folder.parent / "config.json").is_file():
        return f"name the folder, {folder.parent}"
    if (folder / _ADAPTER).is_file():
        return f"{folder} {_MERGE}"
    if folder.is_file():
        return f"{folder} is a file: name a folder, after unpacking it if it is an archive"
    return model_folders_in(folder) or missing_folder(folder) or f"is {folder} a Hugging Face folder?"


def _open(folder: Path, *, with_classifier: bool = False) -> _Opened:
    check_whole(folder)
    path = folder / "config.json"
    if (folder / _ADAPTER).is_file() and not any((folder / name).exists() for name in (SINGLE, INDEX)):
        raise UserError(f"{folder} {_MERGE}")
    if not path.exists():
        if (folder / "config.gin").is_file():
            raise UserError(f"{folder} is a model folder already (config.gin), and no Hugging Face folder; use it as --model_dir")
        raise UserError(f"{path} is missing: {_meant(folder)}")
    content = read_json(path)
    family = _family_named(content.get("model_type"), path)
    _check_numbers(content, path)
    try:
        config = family.config_from_huggingface(content)
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix('config.json: ')}") from error
    _check_token_ids(content, config.vocab_size, path)
    stored = open_tensors(local(folder))
    _check_sizes(config, stored, path)
    tensors = _with_known_names(stored, family, folder)
    config, tensors = _with_ties(config, tensors, family)

    foreign = _is_foreign(content.get("architectures"), family, path)
    if with_classifier:
        parts = _classifier_parts(family, content["architectures"])
        return _Opened(config, tensors, tuple(entry for entry in family.entries(config) if entry.part in parts), parts)
    entries = _read_entries(family, config, content.get("architectures") or ())
    if _present(entries, config, tensors, False) == {"embeddings", "encoder"} < {entry.part for entry in entries}:
        raise UserError(
            f"{folder} has the encoder of {family.model_type} alone, without a decoder ({shown(content.get('architectures'))}): "
            "give the folder of the whole model, whose encoder bertfam.load(FOLDER, network='encoder') returns"
        )
    parts = _largest(_present(entries, config, tensors, foreign) | family.needed(entries), family)
    return _Opened(config, tensors, tuple(entry for entry in entries if entry.part in parts), parts)


def _family_named(name: Any, path: Path) -> Family:
    """Return the family of config.json's model_type."""
    own = _known_families()
    wrapped = {wrapper.model_type: family for family in own.values() for wrapper in family.wrappers}
    known_families = own | {model_type: family for model_type, family in wrapped.items() if model_type not in own}
    family = known_families.get(name) if isinstance(name, str) else None
    if family is None:
        raise UserError(
            f"{path}: model_type is {shown(name)}, supported: {', '.join(known_families)}; for a family of your "
            "own give --module_import=MODULE (in Python, import it first)"
        )
    return family


def _check_numbers(content: Mapping[str, Any], path: Path) -> None:
    """Raise UserError for numbers in config.json that no model has, before a family makes lists of layers from them."""
    for name, value in content.items():
        for number in value.values() if isinstance(value, dict) else (value,):
            if isinstance(number, int) and abs(number) >= 2**63:
                raise UserError(f"{path}: {shown(name)} has a number of more than 64 bits")
        if "layer" in name and isinstance(value, int) and value > _MAX_LAYERS:
            raise UserError(f"{path}: {shown(name)} is {value}, and a model has at most {_MAX_LAYERS:,} layers")


def _check_token_ids(content: Mapping[str, Any], rows: int, path: Path) -> None:
    """Raise UserError for ids of special tokens that are none, or that the model would look up in vain; warn about others.

    Models that were configured with the defaults of their class for another vocabulary have such others.

    Args:
      content: of config.json.
      rows: number of rows of the embedding table.
      path: path of config.json, for messages.
    """
    for name, value in content.items():
        if not name.endswith("_token_id") or value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if any(type(id) is not int for id in ids):
            raise UserError(f"{path}: {shown(name)} is {shown(value)}, and must be the id of a token, or null")
        if all(-1 <= id < rows for id in ids):  # -1 is none
            continue
        problem = f"{path}: {shown(name)} is {shown(value)}, and the model has the ids 0 to {rows - 1}"
        if name in _LOOKED_UP:
            raise UserError(f"{problem}: put the id there that the tokenizer gives to the token, or null")
        warn_once(f"{problem}: the token of the tokenizer is used")


def _check_sizes(config: Any, tensors: Mapping[str, StoredTensor], path: Path) -> None:
    """Raise UserError if the config has a size beyond all the numbers that the files hold."""
    numbers = sum(math.prod(tensor.shape) for tensor in tensors.values())
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if type(value) is int and value > max(numbers, _MAX_LAYERS):
            raise UserError(
                f"{path} asks for {type(config).__name__}.{field.name} = {value}, and the tensors hold {numbers:,} numbers "
                "altogether: fetch the folder again"
            )


def _is_foreign(architectures: Any, family: Family, path: Path) -> bool:
    """Return True if config.json names a class that is not supported, such as one with a classifier."""
    stated = [] if architectures is None else architectures
    if not isinstance(stated, list) or not all(isinstance(name, str) for name in stated):
        raise UserError(f"{path}: architectures is {shown(stated)}, and must be a list of names of classes")
    return bool(stated) and set(stated).isdisjoint(
        name for parts, name in family.architectures.items() if not parts & CLASSIFIERS
    )


def _read_entries(family: Family, config: Any, classes: Collection[str]) -> tuple[Entry, ...]:
    """Return the entries of the parts that are read from a model of the given classes of transformers.

    The classifier itself is left out, and of its model only the other parts of the class are read: tensors of a classifier may
    have the names of another head's, as ModernBERT's have. The head of a language model is read, too, as its tensors are those of
    the word table or of BART's bias, which may be absent.
    """
    own = frozenset[str]() if isinstance(family, LanguageModelFamily) else _classifier_parts(family, classes)
    return tuple(entry for entry in family.entries(config) if entry.part not in CLASSIFIERS and (not own or entry.part in own))


def _classifier_parts(family: Family, classes: Collection[str]) -> frozenset[str]:
    """Return the parts of the class with a classifier among the given classes of transformers; none if there is none."""
    found = (parts for parts, name in family.architectures.items() if parts & CLASSIFIERS and name in classes)
    return next(found, frozenset())


def with_vocabulary(config: Any, vocabulary: Vocabulary, folder: str | Path) -> Any:
    """Return the config of a model read from a folder, for the folder's tokenizer.

    Embedding tables often have more rows than tokens; these rows are kept for export and never predicted.

    Raises:
      UserError: when there are more tokens than rows, or the tokenizer belongs to another model.
    """
    size = vocabulary.size
    if size > config.vocab_size:
        raise UserError(
            f"{folder}: config.json says vocab_size {config.vocab_size} and the tokenizer has {size} tokens; "
            "put the tokenizer there that the model was trained with"
        )
    if size != config.vocab_size:
        config = dataclasses.replace(config, vocab_size=size, table_rows=config.vocab_size)
    try:
        return family_of(config).fit_vocabulary(config, vocabulary)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error


def write(
    folder: str | Path,
    config: Any,
    params: Mapping[str, Any],
    *,
    dtype: str = "float32",
    tokenizer_files: Iterable[Path] = (),
    extra: Mapping[str, Any] | None = None,
    wrapper: Wrapper | None = None,
) -> str:
    """Write a folder that `from_pretrained` loads without missing or unexpected keys; it is complete or absent.

    Args:
      folder: must not exist, or be empty.
      config: the family's config.
      params: arrays, unboxed; the heads in it decide the class.
      dtype: of the tensors, "float32" or "bfloat16".
      tokenizer_files: copied beside them.
      extra: further values of config.json, such as pad_token_id.
      wrapper: one of the family's wrappers, in the place of the class with these heads, of which there are none.

    Returns:
      the name of the class, such as "BertForPreTraining".

    Raises:
      UserError: when the folder is in use, the dtype is unknown, or no class has these heads.
    """
    family = family_of(config)
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    check_unused(folder)
    architecture = wrapper.architecture if wrapper else architecture_of(family, params)
    values = dict(extra or {}) | ({"model_type": wrapper.model_type} if wrapper else {})
    with new_folder(folder) as partial:
        config, params = _with_all_heads(config, params)
        write_config(partial, config, architecture, dtype, values)
        tensors = to_tensors(family, config, _with_unread(family, config, params))
        if wrapper:
            tensors = {wrapper.prefix + name: tensor for name, tensor in tensors.items()}
        write_tensors(partial / SINGLE, tensors, dtype)
        for path in tokenizer_files:
            shutil.copyfile(path, partial / path.name)
    return architecture


def architecture_of(family: Family, parts: Collection[str]) -> str:
    """Return the name of the class with just these parts; raise UserError if there is none."""
    architecture = family.architectures.get(frozenset(parts))
    if architecture is None:
        raise UserError(f"no {family.model_type} class of transformers has just the parts {', '.join(sorted(parts))}")
    return architecture


def write_config(folder: Path, config: Any, architecture: str, dtype: str, extra: Mapping[str, Any] | None) -> None:
    """Write the config.json of a class, with further values."""
    content = family_of(config).config_to_huggingface(config) | {"architectures": [architecture], "torch_dtype": dtype}
    text = json.dumps(content | dict(extra or {}), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _with_all_heads(config: Any, params: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return a model with the heads that were removed from it as heads of zeros, whose outputs are the same.

    Heads in transformers are hidden_size / num_heads wide, so that layers cannot have fewer of the same width.

    Raises:
      UserError: the width of the heads does not divide that of the hidden states.
    """
    width = getattr(config, "head_size", None)
    if width is None:
        return config, params
    if config.hidden_size % width:
        raise UserError(
            f"{type(config).__name__}.head_size = {width} does not divide hidden_size = {config.hidden_size}, and transformers "
            "has no such heads: a model like it cannot be written"
        )
    parts, family = frozenset(params) - CLASSIFIERS, family_of(config)
    config = pruning.with_all_heads(config, config.hidden_size // width)
    boxed = jax.eval_shape(lambda key: family.init(config, key, parts), jax.random.key(0))
    return config, pruning.with_zero_heads(boxed, params)


def _with_unread(family: Family, config: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return params with zeros for the parts that the class has and does not read (see `Family.unread`)."""
    unread = [part for head, part in family.unread.items() if head in params and part not in params]
    shapes = shapes_of(config, frozenset({*params, *unread} - CLASSIFIERS)) if unread else {}
    return {**params, **{part: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes[part]) for part in unread}}


def writable(config: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of params that a class of transformers has together: all, or the most of them."""
    parts = _largest(frozenset(params), family_of(config))
    return {name: value for name, value in params.items() if name in parts}


def special_ids(config: Any, vocabulary: Vocabulary) -> dict[str, int | None]:
    """Return the special token ids for config.json: padding, and for a generator the start and end of texts.

    Raises:
      UserError: when transformers derives the model's positions from no padding id.
    """
    family, tokens = family_of(config), vocabulary.token_ids
    found: dict[str, int | None] = {"pad_token_id": family.padding_id(config, vocabulary)}
    if isinstance(family, LanguageModelFamily):
        ends = end_tokens(config, tokens)
        found["eos_token_id"] = next(iter(ends.ids), None)
        found |= prompt_format(config).special_ids(tokens, ends.start)
    return found


def pieces_before(config: Any, vocabulary: Vocabulary) -> list[str] | None:
    """Return the pieces that the tokenizer of a causal LM adds before a text; it adds none after it.

    None for other models, which use the control tokens of the vocabulary's layout.
    """
    if not isinstance(family_of(config), LanguageModelFamily):
        return None
    return prompt_format(config).pieces_before(config, vocabulary, end_tokens(config, vocabulary.token_ids).start)


def family_of(config: Any) -> Family:
    """Return the family of a config; raise UserError if transformers has no such family."""
    family = find_family(config)
    if family is not None:
        return family
    raise UserError(f"transformers has no class for a {type(config).__name__}: a model like it cannot be written")


def find_family(config: Any) -> Family | None:
    """Return the family of a config; None if transformers has no such family."""
    return next((family for family in _known_families().values() if type(config) is family.config), None)


def _known_families() -> dict[str, Family]:
    """Return the tables of the package's families and of those from outside it, by model_type; the package's come first."""
    return FAMILIES | {name: table for name, table in _tables(families.registered()).items() if name not in FAMILIES}


def to_tensors(family: Family, config: Any, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Convert a parameter tree to float32 tensors by their names in transformers."""
    flat = traverse_util.flatten_dict(params, sep="/")
    named = written_entries(family, config, params)
    left_over = sorted(set(flat) - {entry.ours for entry, _ in named})
    if left_over:
        raise ValueError(f"no entry of {family.model_type} maps {left_over[0]}")
    pieces: dict[str, dict[int, np.ndarray]] = {}
    axes: dict[str, int] = {}
    for entry, names in named:
        array = np.asarray(jax.device_get(flat[entry.ours]), np.float32)
        for name, layer in zip(names, layers_of(array if entry.stacked else array[None], len(names)), strict=True):
            pieces.setdefault(name, {})[entry.part_of[0]] = entry.to_theirs(layer, config.require_table_rows)
            axes[name] = entry.part_axis
    return {name: np.concatenate([found[place] for place in sorted(found)], axes[name]) for name, found in pieces.items()}


def written_entries(family: Family, config: Any, parts: Collection[str]) -> list[tuple[Entry, list[str]]]:
    """Return the entries of the parts of a model, each with the names of its tensors, one a layer, in their class."""
    entries = [entry for entry in family.entries(config) if entry.part in parts]
    has_head = family.always_prefixed or any(not entry.theirs.startswith(family.prefix) for entry in entries)
    named = []
    for entry in entries:
        prefix = family.classifier_prefix if CLASSIFIER in parts and entry.part != CLASSIFIER else ""
        names = entry.names(config.num_layers)
        named.append((entry, [prefix + (name if has_head else name.removeprefix(family.prefix)) for name in names]))
    return named


def layers_of(array: np.ndarray, count: int) -> np.ndarray:
    """Return an array [layers, ...] for `count` layers: one that all layers share is repeated, where files have them all."""
    return np.broadcast_to(array, (count, *array.shape[1:])) if len(array) == 1 else array


@functools.lru_cache(maxsize=16)
def shapes_of(config: Any, parts: frozenset[str]) -> dict[str, Any]:
    """Return the tree of `jax.ShapeDtypeStruct`s of a model's body and the heads that are named."""
    family = family_of(config)
    return jax.eval_shape(lambda key: nn.meta.unbox(family.init(config, key, parts)), jax.random.key(0))


def _with_known_names(tensors: Mapping[str, StoredTensor], family: Family, folder: Path) -> dict[str, StoredTensor]:
    """Return tensors by current names, with the prefix and without buffers; raise UserError if two of one name differ."""
    renamed: dict[str, StoredTensor] = {}
    tensors = {_unwrapped(name, family): tensor for name, tensor in tensors.items()}
    bare = not any(name.startswith(family.prefix) for name in tensors)
    for name, tensor in tensors.items():
        if name.endswith(family.buffers):
            continue
        for old, new in family.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        name = family.prefix + name if bare else name.removeprefix(family.classifier_prefix)
        if name in renamed and not _equal(renamed[name], tensor):
            raise UserError(f"{folder}: there are two of {name}, with different values, and a model has one here")
        renamed[name] = tensor
    return renamed


def _unwrapped(name: str, family: Family) -> str:
    """Return the name that a tensor has without the class of another model_type around the encoder."""
    prefix = next((wrapper.prefix for wrapper in family.wrappers if name.startswith(wrapper.prefix)), None)
    return name if prefix is None else family.prefix + name.removeprefix(prefix)


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    return one.shape == other.shape and np.array_equal(one.read(), other.read())


def _with_ties(config: Any, tensors: Mapping[str, StoredTensor], family: Family) -> tuple[Any, dict[str, StoredTensor]]:
    """Resolve second copies as transformers does: equal ones are one tensor, a head with other values is untied."""
    tensors = dict(tensors)
    head, table = family.tied
    if config.tie_embeddings and head in tensors and table in tensors:
        if _equal(tensors[head], tensors[table]):
            del tensors[head]
        else:
            config = dataclasses.replace(config, tie_embeddings=False)
    for used, written in family.aliases.items():
        if config.tie_embeddings and used in tensors:
            tensors[written] = tensors.pop(used)
        elif not config.tie_embeddings and written in tensors:
            tensors.setdefault(used, tensors[written])
    return config, tensors


def _present(entries: Iterable[Entry], config: Any, tensors: Collection[str], foreign: bool) -> frozenset[str]:
    """Return the parts that the tensors belong to.

    If config.json names a class that is not supported (`foreign`), an incomplete head may belong to another head, so only
    complete parts count.
    """
    names: dict[str, set[str]] = {}
    for entry in entries:
        names.setdefault(entry.part, set()).update(entry.names(config.num_layers))
    return frozenset(part for part, own in names.items() if (own <= set(tensors) if foreign else not own.isdisjoint(tensors)))


def _largest(present: frozenset[str], family: Family) -> frozenset[str]:
    """Return the parts of the largest class within `present`; of equally large ones, the first in the family's table."""
    return max((parts for parts in family.architectures if parts <= present), key=len)


def _expected_shape(entry: Entry, config: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the tensor of an entry must have in files, by the way back; `shape` is that of our array."""
    one = shape[1:] if entry.stacked else shape
    own = entry.to_theirs(np.broadcast_to(np.float32(0), one), config.require_table_rows).shape
    return tuple(size * (entry.part_of[1] if axis == entry.part_axis else 1) for axis, size in enumerate(own))


def _check_shapes(
    entry: Entry, config: Any, tensors: Mapping[str, StoredTensor], expected: tuple[int, ...], folder: Path
) -> None:
    for name in entry.names(config.num_layers):
        if name in tensors and tensors[name].shape != expected:
            raise UserError(f"{folder}: {name} has shape {tensors[name].shape}, and config.json asks for {expected}")


def _gather(
    entry: Entry, config: Any, tensors: Mapping[str, StoredTensor], shape: tuple[int, ...], expected: tuple[int, ...]
) -> np.ndarray:
    """Return our array of an entry, of the given shape."""
    one = shape[1:] if entry.stacked else shape
    place, parts = entry.part_of
    layers = []
    for name in entry.names(config.num_layers):
        tensor = tensors[name].read() if name in tensors else np.zeros(expected, np.float32)  # an optional one
        layers.append(entry.to_ours(np.split(tensor, parts, entry.part_axis)[place], one))
    return np.stack(layers) if entry.stacked else layers[0]
