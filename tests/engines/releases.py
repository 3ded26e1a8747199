# SPDX-License-Identifier: Apache-2.0
"""Debian's releases as parameters of tests, and what must not be skipped."""

from __future__ import annotations

import pytest

from tests.engines import suite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

NOT_TESTED = "the newest engines were NOT tested"


def of_release(release: str, *values: object, name: str = "") -> ParameterSet:
    """Return a parameter whose tests must not be skipped in CI where the release is a required one.

    Args:
        release: Debian's name of it.
        values: the parameter; the release alone if there is none.
        name: of the parameter; the release's if there is none.
    """
    marks = (pytest.mark.engine,) if release in suite.REQUIRED else ()
    return pytest.param(*(values or (release,)), marks=marks, id=name or release)


ALL = [of_release(release) for release in suite.SUITES]
