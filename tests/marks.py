"""Cases of a parametrised test that the test line of the README leaves to ``.ci/run``."""

import pytest


def in_ci(*cases):
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.ci)
        for case in cases
    ]
