"""Values that JSON can hold."""

import math
from typing import Any


def json_value(value: Any) -> Any:
    """Return dicts, lists and numbers with None in the place of NaN and infinities, which JSON lacks, and texts as keys."""
    if isinstance(value, dict):
        return {str(name): json_value(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
