# SPDX-License-Identifier: Apache-2.0
"""The settings of the health engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nvct.agent.device_plugin import settings as device_plugin
from nvct.agent.health.machine import Rules
from nvct.errors import UsageError
from nvct.host import faults
from nvct.host.faults import XidTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.health.preflight import Effect, Preflight

PROBATION_S = 60.0
OPTIONS = ("health_recovery", "health_probation", "xid_table", "health_preflight")
"""The device plugin's options about the health of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in force, with the table of XIDs."""

    rules: Rules
    table: XidTable
    preflight: Mapping[str, Effect] | None = None

    @property
    def recovers(self) -> bool:
        """Return whether a device can become healthy again."""
        return self.rules.recovers

    def preflight_after(self, former: Preflight | None) -> Preflight | None:
        """Return the preflight, None if it is off; the former one's findings stay."""
        if self.preflight is None:
            return None
        from nvct.agent.health.preflight import Preflight  # few nodes have one

        made = former or Preflight(self.preflight)
        made.effects = self.preflight
        return made


def resolve(
    recovery: str, probation: str, table: str, env: Mapping[str, str], preflight: str = ""
) -> Settings:
    """Return the settings.

    UsageError if a value is malformed; DocumentError if the file is.

    Args:
        recovery: auto, or never: as NVIDIA's device plugin.
        probation: seconds; "" for the default.
        table: a file of XIDs; "" for none.
        env: DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS.
        preflight: the effects of its checks; none, or "".
    """
    rows = faults.read()
    if table:
        own = faults.read(table)
        named = {xid: row if row.name else _named(row, rows) for xid, row in own.items()}
        rows = {**rows, **named}
    rules = Rules(recovers=recovery == "auto", probation_s=_seconds(probation))
    checks = faults.checks(env)
    return Settings(
        rules=rules,
        table=XidTable(rows=rows, checks=checks, is_incumbent=not rules.recovers),
        preflight=_preflight(preflight, recovers=rules.recovers),
    )


def from_environment(env: Mapping[str, str]) -> Settings:
    """Return the settings of the variables alone."""
    program = replace(device_plugin.PROGRAM, only=OPTIONS)
    known = device_plugin.Settings(**program.values((), env))
    return resolve(
        known.health_recovery, known.health_probation, known.xid_table, env, known.health_preflight
    )


def _preflight(text: str, *, recovers: bool) -> Mapping[str, Effect] | None:
    if text in ("", "none"):
        return None
    if not recovers:
        raise UsageError(
            f"--health-preflight={text} cannot be combined with --health-recovery=never",
            hint="never does as NVIDIA's device plugin, which looks at no values of NVML",
        )
    from nvct.agent.health import preflight  # few nodes have one

    return preflight.effects(text)


def _named(row: faults.Row, rows: Mapping[int, faults.Row]) -> faults.Row:
    """Return a user's row with nvct's name of its XID."""
    known = rows.get(row.xid)
    return replace(row, name=known.name) if known else row


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text else PROBATION_S
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(
            f"--health-probation must be a number of seconds, not {text!r}", hint="e.g. 60"
        )
    return seconds
