# SPDX-License-Identifier: Apache-2.0
"""Names of the health engine's settings, without its modules."""

from __future__ import annotations

RECOVERY = ("auto", "never")
"""Whether a device can become healthy again."""
RECOVERY_ENV, PROBATION_ENV, TABLE_ENV = "HEALTH_RECOVERY", "HEALTH_PROBATION", "XID_TABLE"
