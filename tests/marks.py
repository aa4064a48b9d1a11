"""Marks of tests: for ``.ci/run`` or the slow run alone, or for machines that have a package."""

from importlib.util import find_spec

import pytest

needs_antiberty = pytest.mark.skipif(find_spec("antiberty") is None, reason="extra antiberty")


def in_ci(*cases):
    """Mark cases of a parametrised test that the test line of the README leaves to ``.ci/run``."""
    return _marked(pytest.mark.ci, cases)


def in_slow(*cases):
    """Mark cases of a parametrised test that ``.ci/run`` leaves to ``pytest -m slow``."""
    return _marked(pytest.mark.slow, cases)


def _marked(mark, cases):
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in cases
    ]
