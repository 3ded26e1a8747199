# SPDX-License-Identifier: Apache-2.0
"""A host with a driver and a farm, as the farm's own tests have it."""

from tests.unit.farm.conftest import lab

__all__ = ["lab"]
