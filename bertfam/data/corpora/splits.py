"""The splits of every corpus and cache: a module of its own, as reading text needs no NumPy and reading a cache no splitter."""

SPLITS = ("train", "validation")
