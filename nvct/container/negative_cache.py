# SPDX-License-Identifier: Apache-2.0
"""Recent failures to compile plans, so that waiting creates do not repeat a slow attempt.

Hot, but loaded only when something must be compiled. An NVML that hangs costs 20 s, and one
process at a time may call it. Without this cache the tenth create would wait for minutes, longer
than engines do. Contract: a failure counts for each process that asked for the plan before the
failure; for a later process only if the attempt was slow, and for KEPT_NS. In both cases its
fingerprints must match. Successes are not recorded here (plans are stored elsewhere). After a
fast failure each later create tries again.
"""

from __future__ import annotations

import time

from nvct.container.plan import fingerprints
from nvct.errors import NvctError, from_dict, to_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nvct.container.plan.store import Store

    T = TypeVar("T")

FORMAT = 1
SUFFIX = ".failed"
SLOW_NS = 2_000_000_000
KEPT_NS = 5_000_000_000


class Failures:
    """The last failure to make one plan.

    Args:
        store: of the failure.
        plan_name: name of the plan.
        config_path: of the config.toml in force.
        proc_root: the procfs that shows the loaded driver and the GPUs.
    """

    __slots__ = ("_asked_at", "_config", "_name", "_proc", "_store")

    def __init__(self, store: Store, plan_name: str, config_path: str, proc_root: str) -> None:
        """Record the time: a failure after it counts for this process."""
        self._asked_at = time.monotonic_ns()
        self._store = store
        self._name = plan_name + SUFFIX
        self._config = config_path
        self._proc = proc_root

    def check(self) -> None:
        """Raise the last failure if it counts for this process.

        Raises:
            NvctError: the failure.
        """
        record = self._store.read_json(self._name)
        if record is None or record.get("nvct-failed") != FORMAT:
            return
        if record.get("config") != self._config:
            return
        began: int = record["began"]  # type: ignore[assignment]  # checksum verified: `watch` wrote it
        ended: int = record["ended"]  # type: ignore[assignment]
        now = time.monotonic_ns()
        if ended > now:  # from an earlier boot
            return
        was_slow = ended - began >= SLOW_NS and now - ended < KEPT_NS
        if (ended >= self._asked_at or was_slow) and not fingerprints.broken(record["facts"]):  # type: ignore[arg-type]
            raise from_dict(record["error"])

    def watch(self, make: Callable[[], T]) -> T:
        """Return the result of `make`; record its failure.

        Raises:
            NvctError: raised by `make`.
        """
        began = time.monotonic_ns()
        facts = self._facts()
        try:
            return make()
        except NvctError as error:
            document = {
                "nvct-failed": FORMAT,
                "config": self._config,
                "facts": facts,
                "began": began,
                "ended": time.monotonic_ns(),
                "error": to_dict(error),
            }
            self._store.write_json(self._name, document)
            raise

    def _facts(self) -> list[fingerprints.Fingerprint]:
        """Return fingerprints that change when the driver is loaded or config.toml is edited."""
        return [
            fingerprints.take_file(self._config, time.time_ns()),
            fingerprints.take("text", f"{self._proc}/driver/nvidia/version"),
            fingerprints.take("text", f"{self._proc}/devices"),
            fingerprints.take("list", f"{self._proc}/driver/nvidia/gpus"),
        ]
