"""A sample in the quick tier, the rest in the slow one."""

import pytest


def mostly_slow(values, *quick, key=lambda value: value):
    """Parameters, or tuples of them, of which only those with these keys are in the quick tier."""
    values = list(values)
    missing = set(quick) - {key(value) for value in values}
    assert not missing, f"not among the parameters: {missing}"

    def slow(value):
        return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)

    return [value if key(value) in quick else slow(value) for value in values]
