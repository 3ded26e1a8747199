# SPDX-License-Identifier: Apache-2.0
"""Fixtures of other folders that the attacks need: the launchers, and a simulated node."""

from __future__ import annotations

from tests.integration.conftest import simulated
from tests.unit.launcher.conftest import lab, launchers

__all__ = ["lab", "launchers", "simulated"]
