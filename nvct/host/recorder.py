# SPDX-License-Identifier: Apache-2.0
"""Records decisions of the agent and the NRI plugin for `nvct log`, as the shim records its own.

A caller that asks again and again, such as a kubelet whose claim cannot be prepared, is recorded
once in AGAIN_S: it must not push out the records of others.
"""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from nvct.container import recorder
from nvct.container.plan.store import Store
from nvct.errors import shortened
from nvct.paths import AGENT_DIR

Outcome: TypeAlias = Literal["given", "refused", "changed"]

AGAIN_S = 300.0
REMEMBERED = 256
OTHERS_MAY_WRITE = 0o022
"""Only these bits are forbidden: the kubelet makes the folder of a pod, and others can read it."""


class Recorder:
    """Writes records to a folder; a record that cannot be written is lost."""

    def __init__(self, folder: str = AGENT_DIR) -> None:
        self._store = Store(folder, forbidden=OTHERS_MAY_WRITE)
        self._last: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}

    def decided(self, task: str, outcome: Outcome, about: str, **texts: str) -> None:
        """Record a decision.

        `about`: the resource, claim, device or container. `texts`: `asked`, `result` and `notes`;
        `error`, `code` and `hint` of a refusal.
        """
        now = time.monotonic()
        cut = {name: shortened(text, recorder.ASKED) for name, text in texts.items() if text}
        fields = {"outcome": outcome, **cut}  # `_last` keeps them; a pod's author writes some
        since, before = self._last.get((task, about), (0.0, {}))
        if before == fields and outcome != "given" and now - since < AGAIN_S:
            return
        self._last.pop((task, about), None)
        self._last[task, about] = now, fields
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]
        recorder.decided(self._store, task, about, fields)
