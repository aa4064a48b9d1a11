"""Marks of tests: for ``.ci/run`` alone, or for machines that have a package."""

from importlib.util import find_spec

import pytest

needs_antiberty = pytest.mark.skipif(find_spec("antiberty") is None, reason="extra antiberty")


def in_ci(*cases):
    """Mark cases of a parametrised test that the test line of the README leaves to ``.ci/run``."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.ci)
        for case in cases
    ]
