"""The version of bertfam, which setup.py and saved files read."""

__version__ = "0.1.0"
