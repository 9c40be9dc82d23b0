"""Preservation of gin's global state for programs that use gin themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from gin import config as gin_config


@contextmanager
def preserve_gin() -> Iterator[None]:
    """Restore gin's bindings, imports, singletons and lock at the end of the block.

    gin has no public function for this. Its registry of configurables, which gains bertfam's, and its constants are not
    restored.
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
