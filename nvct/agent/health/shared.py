# SPDX-License-Identifier: Apache-2.0
"""One health engine for all tasks of a process: NVML delivers each XID once."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.store import Store
from nvct.agent.instance import FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.health.settings import Settings
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient

_engines: WeakKeyDictionary[NvmlClient, HealthEngine] = WeakKeyDictionary()


def engine(
    client: NvmlClient, settings: Settings, journal: Log, folder: str = FOLDER
) -> HealthEngine:
    """Return the engine of a client of NVML, with these settings from now on.

    Args:
        client: of NVML; it is the identity, a task names the one to be asked in `run`.
        settings: of the engine.
        journal: the log.
        folder: of the file that keeps the states.
    """
    found = _engines.get(client)
    if found is None:
        for word in settings.table.checks.malformed:
            journal.warning(f"{word!r} is no XID: it has no effect")
        found = _engines[client] = HealthEngine(settings, journal, Store(folder))
    else:
        found.use(settings)
    return found


def existing(client: NvmlClient) -> HealthEngine | None:
    """Return the engine of a client, None if no task has asked for one."""
    return _engines.get(client)
