"""The only statistics that the tests need beyond NumPy."""


def chi_square_limit(freedom: int) -> float:
    """What a chi-square of so many degrees of freedom exceeds once in 30,000 times (Wilson and Hilferty 1931)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.0 * (2 / (9 * freedom)) ** 0.5) ** 3
