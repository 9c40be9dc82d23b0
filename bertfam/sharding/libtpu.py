"""The TPU compiler, where it is installed to plan and there is no TPU."""

import os
from glob import glob

# What it looks for, and complains on stderr that it does not find.
PLACE = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v5litepod-16"}


def quieten() -> None:
    """Lets JAX look for devices without complaints, on a machine without TPUs; before JAX does."""
    if not (glob("/dev/accel*") or glob("/dev/vfio/*")):
        for variable, value in PLACE.items():
            os.environ.setdefault(variable, value)
