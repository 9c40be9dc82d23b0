"""Conversion of frozen configs to gin bindings."""

import dataclasses
from collections.abc import Collection
from typing import Any

from bertfam.config.parse import Override


def bindings_of(config: Any, origin: str, *, scope: str = "", without: Collection[str] = ()) -> list[Override]:
    """Return the bindings that build a config of plain values.

    Args:
      config: a frozen dataclass that gin knows.
      origin: what error lines name, such as a flag.
      scope: that it is built in.
      without: fields that are left out.
    """
    name = f"{scope}/{type(config).__name__}" if scope else type(config).__name__
    fields = [field.name for field in dataclasses.fields(config) if field.name not in without]
    return [Override(f"{name}.{field} = {getattr(config, field)!r}", origin) for field in fields]
