"""Conversion of frozen configs to gin bindings."""

import dataclasses
from collections.abc import Collection
from typing import Any

from bertfam.config.parse import Override


def bindings_of(config: Any, origin: str, *, scope: str = "", without: Collection[str] = ()) -> list[Override]:
    """Return the bindings that build a config of plain values.

    Args:
      config: a frozen dataclass that is registered with gin.
      origin: the origin that error messages name, such as a flag.
      scope: the gin scope in which the config is built.
      without: fields to leave out.
    """
    name = f"{scope}/{type(config).__name__}" if scope else type(config).__name__
    fields = [field.name for field in dataclasses.fields(config) if field.name not in without]
    return [Override(f"{name}.{field} = {getattr(config, field)!r}", origin) for field in fields]
