"""gin configuration: load files and flags, find mistakes, build the objects, report the origin of every value."""

from bertfam.config.build import Config, Defaults, file_binds, load
from bertfam.config.parse import Override
from bertfam.config.registry import register

__all__ = ["Config", "Defaults", "Override", "file_binds", "load", "register"]
