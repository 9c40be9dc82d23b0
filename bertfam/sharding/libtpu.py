"""Environment variables for the TPU compiler on machines without a TPU."""

import os
from glob import glob

# Placeholders for variables that libtpu otherwise reports as missing on stderr.
PLACEHOLDERS = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-16"}


def quieten() -> None:
    """Silence libtpu's warnings on a machine without TPUs; call this before JAX looks for devices."""
    if not (glob("/dev/accel*") or glob("/dev/vfio/*")):
        for variable, value in PLACEHOLDERS.items():
            os.environ.setdefault(variable, value)
