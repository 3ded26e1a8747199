# SPDX-License-Identifier: Apache-2.0
"""What could not be compiled a moment ago, so that creates do not queue up to find out again.

Hot, but opened only when something has to be compiled. An NVML that hangs costs 20 s, and one
process at a time may ask it: without a memory the tenth create would wait for minutes, and for
longer than engines do. Contract: who came while a failure was being found has it too; who comes
later has it only where finding it was slow, for KEPT_NS, and while its facts hold. Nothing is
remembered that went right (plans are kept elsewhere), and a failure that was found fast is looked
at again by each create.
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
        store: where it is kept.
        which: plan.
        config_path: of the config.toml in force.
        proc_root: where the loaded driver and the GPUs show.
    """

    __slots__ = ("_asked", "_config", "_name", "_proc", "_store")

    def __init__(self, store: Store, which: str, config_path: str, proc_root: str) -> None:
        """Note the time: whatever fails from now on is this process's failure too."""
        self._asked = time.monotonic_ns()
        self._store = store
        self._name = which + SUFFIX
        self._config = config_path
        self._proc = proc_root

    def check(self) -> None:
        """Fail as the last attempt did, if that counts for this process.

        Raises:
            NvctError: the failure.
        """
        found = self._store.read_json(self._name)
        if found is None or found.get("nvct-failed") != FORMAT:
            return
        if found.get("config") != self._config:
            return
        began: int = found["began"]  # type: ignore[assignment]  # sealed: as `watch` wrote it
        ended: int = found["ended"]  # type: ignore[assignment]
        now = time.monotonic_ns()
        if ended > now:  # of another boot
            return
        was_slow = ended - began >= SLOW_NS and now - ended < KEPT_NS
        if (ended >= self._asked or was_slow) and not fingerprints.broken(found["facts"]):  # type: ignore[arg-type]
            raise from_dict(found["error"])

    def watch(self, make: Callable[[], T]) -> T:
        """Make something; remember how it failed.

        Raises:
            NvctError: what `make` raises.
        """
        began = time.monotonic_ns()
        there = self._facts()
        try:
            return make()
        except NvctError as error:
            document = {
                "nvct-failed": FORMAT,
                "config": self._config,
                "facts": there,
                "began": began,
                "ended": time.monotonic_ns(),
                "error": to_dict(error),
            }
            self._store.write_json(self._name, document)
            raise

    def _facts(self) -> list[fingerprints.Fingerprint]:
        """Return what changes when the driver is loaded, or config.toml is mended."""
        return [
            fingerprints.take_file(self._config, time.time_ns()),
            fingerprints.take("text", f"{self._proc}/driver/nvidia/version"),
            fingerprints.take("text", f"{self._proc}/devices"),
            fingerprints.take("list", f"{self._proc}/driver/nvidia/gpus"),
        ]
