"""The moving average of the parameters."""

from typing import Any

import jax

from bertfam.training.optimizers.moments import one_minus_power


def averaged(average: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """The mean of the parameters after each update so far, with weights in proportion to decay ** (updates since).

    This is the exponential moving average that starts at zero, corrected for its bias (Kingma and Ba 2015, section 3): after
    the first update it is the parameters themselves, after many a = decay a + (1 - decay) theta.

    Args:
      average: the one before; of no weight at the first update.
      params: the new parameters.
      decay: in [0, 1).
      updates: int32[], how many were made, this one included.
    """
    # a_t = a_{t-1} + (1 - d) / (1 - d^t) (theta_t - a_{t-1})
    share = (1 - decay) / one_minus_power(decay, updates)
    return jax.tree.map(lambda old, new: old + share * (new - old), average, params)
