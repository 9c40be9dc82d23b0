"""Preservation of gin's global state for programs that use gin themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from gin import config as gin_config


@contextmanager
def gin_kept() -> Iterator[None]:
    """Keep gin's bindings, imports, singletons and lock unchanged outside the block, whatever is loaded within it.

    gin has no public way to do this. Its registry of configurables, to which bertfam's are added, and its constants stay.
    """
    tables = (gin_config._CONFIG, gin_config._SINGLETONS, gin_config._IMPORTS, gin_config._OPERATIVE_CONFIG)
    copies = [table.copy() for table in tables]
    locked = gin_config._CONFIG_IS_LOCKED
    try:
        yield
    finally:
        for table, copy in zip(tables, copies, strict=True):
            table.clear()
            table.update(copy)
        gin_config._set_config_is_locked(locked)
