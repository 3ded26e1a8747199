# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of callers: those of the engines and of the simulated node."""

from __future__ import annotations

from tests.engines.conftest import machine_of
from tests.integration.conftest import simulated

__all__ = ["machine_of", "simulated"]
