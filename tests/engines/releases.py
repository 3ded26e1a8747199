# SPDX-License-Identifier: Apache-2.0
"""Releases of Debian and Ubuntu as parameters of tests: `make ci` takes one, `make ci-full` all.

Bookworm and trixie do not change any more, so their tests must not be skipped.
"""

import os

import pytest
from _pytest.mark import ParameterSet

from tests.engines import suite

NOT_TESTED = "the newest engines were NOT tested"
FULL = os.environ.get("NVCT_TESTS_PROFILE") == "full"


def of_release(release: str, *values: object, name: str = "") -> ParameterSet:
    """Return a parameter of tests; CI must not skip them if the release is a required one."""
    marks = (pytest.mark.engine,) if release in suite.REQUIRED else ()
    return pytest.param(*(values or (release,)), marks=marks, id=name or release)


def in_full(release: str, *values: object, name: str = "") -> list[ParameterSet]:
    """Return the same parameter in a list, empty without NVCT_TESTS_PROFILE=full."""
    return [of_release(release, *values, name=name)] if FULL else []


CI = "trixie"
ALL = [of_release(CI), *(each for name in suite.SUITES if name != CI for each in in_full(name))]
"""The release of `make ci`, and in `make ci-full` the others."""
