"""Installed packages of the embedded corpus, and their source files. No package is imported."""

import importlib.machinery
import importlib.metadata
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STANDARD_LIBRARY = "stdlib"

# Folder on the path -> distribution: the dependencies of bertfam. The list is fixed, so that other packages of an environment do
# not change the corpus; missing packages are skipped.
PACKAGES = {
    STANDARD_LIBRARY: STANDARD_LIBRARY,
    "absl": "absl-py",
    "array_record": "array_record",
    "attr": "attrs",
    "charset_normalizer": "charset-normalizer",
    "clu": "clu",
    "etils": "etils",
    "flax": "flax",
    "fsspec": "fsspec",
    "gin": "gin-config",
    "google/protobuf": "protobuf",
    "grpc": "grpcio",
    "h5py": "h5py",
    "huggingface_hub": "huggingface_hub",
    "humanize": "humanize",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "keras": "keras",
    "ml_collections": "ml_collections",
    "ml_dtypes": "ml_dtypes",
    "msgpack": "msgpack",
    "numpy": "numpy",
    "opt_einsum": "opt_einsum",
    "optax": "optax",
    "optree": "optree",
    "orbax/checkpoint": "orbax-checkpoint",
    "packaging": "packaging",
    "psutil": "psutil",
    "pyglove": "pyglove",
    "pygments": "Pygments",
    "requests": "requests",
    "rich": "rich",
    "safetensors": "safetensors",
    "scipy": "scipy",
    "sentencepiece": "sentencepiece",
    "seqio": "seqio",
    "tensorboardX": "tensorboardX",
    "tensorflow": "tensorflow",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_text": "tensorflow-text",
    "tensorstore": "tensorstore",
    "tokenizers": "tokenizers",
    "tqdm": "tqdm",
    "tree": "dm-tree",
    "treescope": "treescope",
    "urllib3": "urllib3",
    "yaml": "PyYAML",
}

# Held-out packages and first-level modules of packages: a part of every kind.
HELD_OUT = ("optax", "scipy/ndimage", "scipy/interpolate", "numpy/linalg", "stdlib/asyncio", "stdlib/statistics.py")

# Tests, vendored copies, and TensorFlow's folders of aliases.
_SKIPPED_FOLDERS = {
    "__pycache__", "_api", "_tf_keras", "_vendor", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "testing", "testdata", "tests", "turtledemo",
}  # fmt: skip
_SKIPPED_FILES = ("_test.py", "_pb2.py", "_pb2_grpc.py", "conftest.py")


@dataclass(frozen=True)
class Source:
    """A source file of a package.

    Attributes:
      package: name of the package, as in `PACKAGES`.
      unit: "package/name" of the first-level module or folder of the package that it belongs to.
      name: "package/path/in/it.py".
      path: path of the file.
      size: size in bytes.
    """

    package: str
    unit: str
    name: str
    path: Path
    size: int


def find_package(name: str, search_path: tuple[str, ...] = ()) -> Path | None:
    """Find the folder of a package ("google/protobuf" for one in a namespace) on `search_path`, or on `sys.path`."""
    if name == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    top, *inner = name.split("/")
    spec = importlib.machinery.PathFinder.find_spec(top, list(search_path) or None)
    for location in (spec and spec.submodule_search_locations) or ():
        folder = Path(location, *inner)
        if folder.is_dir():
            return folder
    return None


def find_sources(package: str, folder: Path) -> Iterator[Source]:
    """Yield the source files of a package without tests and generated code, in a fixed order."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for file in sorted(files):
            if not file.endswith(".py") or file.endswith(_SKIPPED_FILES) or file.startswith("test_"):
                continue
            path = Path(parent, file)
            inner = path.relative_to(folder)
            name = f"{package}/{inner.as_posix()}"
            yield Source(package, f"{package}/{inner.parts[0]}", name, path, path.stat().st_size)


def version(distribution: str) -> str:
    """Return the version of a distribution (of Python for the standard library); "unknown" without metadata."""
    if distribution == STANDARD_LIBRARY:
        return platform.python_version()
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
