"""Critical values of the chi-square distribution, which NumPy lacks."""


def chi_square_limit(degrees_of_freedom: int) -> float:
    """Return the value that chi-square exceeds once in 30,000 times (Wilson and Hilferty 1931)."""
    return degrees_of_freedom * (1 - 2 / (9 * degrees_of_freedom) + 4.0 * (2 / (9 * degrees_of_freedom)) ** 0.5) ** 3
