"""Conversion of frozen configs to gin bindings."""

import dataclasses
from collections.abc import Collection
from typing import Any

from bertfam.config.parse import Override


def bindings_of(config: Any, origin: str, *, scope: str = "", without: Collection[str] = ()) -> list[Override]:
    """Return the bindings that build a config of plain values, and of configs of other classes.

    Args:
      config: a frozen dataclass that is registered with gin.
      origin: the origin that error messages name, such as a flag.
      scope: the gin scope in which the config is built.
      without: fields to leave out.
    """
    prefix = f"{scope}/" if scope else ""
    name = f"{prefix}{type(config).__name__}"
    bindings: list[Override] = []
    for field in dataclasses.fields(config):
        if field.name in without:
            continue
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            bindings += bindings_of(value, origin, scope=scope, without=without)
            text = f"@{prefix}{type(value).__name__}()"
        else:
            text = repr(value)
        bindings.append(Override(f"{name}.{field.name} = {text}", origin))
    return bindings
