# SPDX-License-Identifier: Apache-2.0
"""The settings of the task `heal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvct.agent.core.settings import Program, option
from nvct.agent.heal.machine import LEVELS, Rules
from nvct.errors import UsageError

LEVEL_ENV = "NVCT_REMEDIATION"
GROUP_ENV, EVICT_ENV = f"{LEVEL_ENV}_GROUP", f"{LEVEL_ENV}_EVICT_S"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings."""

    level: str = option(
        "", "How far a GPU that has failed is healed", flags="remediation", env=LEVEL_ENV,
        choices=LEVELS,
    )  # fmt: skip
    group: bool = option(False, "Reset GPUs together if one cannot be reset alone", env=GROUP_ENV)
    evict_s: str = option("1800", "How many seconds evicted pods have to end", env=EVICT_ENV)

    @property
    def rules(self) -> Rules:
        """Return the numbers of the state machine."""
        return Rules(level=self.level, evict_s=float(self.evict_s))


PROGRAM = Program(
    name="heal", title="", version="", summary="Heals GPUs that have failed.", settings=Settings
)


def resolve(words: Sequence[str], env: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings; there are no warnings.

    Raises:
        UsageError: no level is set, or a value is malformed.
    """
    known = Settings(**PROGRAM.values(words, env))
    if not known.level:
        raise UsageError(
            f"the task heal needs {LEVEL_ENV}", hint=f"set it to one of {', '.join(LEVELS)}"
        )
    if not (known.evict_s.isascii() and known.evict_s.isdigit()):
        raise UsageError(
            f"{EVICT_ENV}={known.evict_s!r} is not a number of seconds", hint="such as 1800"
        )
    return known, ()
