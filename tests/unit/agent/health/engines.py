# SPDX-License-Identifier: Apache-2.0
"""Health engines with short times, for tests."""

import io
from collections.abc import Mapping

from nvct.agent.core.logs import Log
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.settings import resolve
from nvct.agent.health.store import Store


def engine(
    env: Mapping[str, str] | None = None,
    *,
    log: Log | None = None,
    recovery: str = "auto",
    probation: str = "0.2",
    store: Store | None = None,
    preflight: str = "",
) -> HealthEngine:
    """Return an engine without nvct's folder."""
    settings = resolve(recovery, probation, "", env or {}, preflight)
    return HealthEngine(settings, log or Log(target=io.StringIO()), store)
