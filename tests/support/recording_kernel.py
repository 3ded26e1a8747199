# SPDX-License-Identifier: Apache-2.0
"""A Kernel that makes the real calls, records them, and can be killed at any call.

Records are tuples of the call's name and its arguments, in the order of the signature. They
compare equal from run to run: a descriptor is recorded as its path, and a random temporary name as
`.nvct-*`.
"""

import inspect
import os
import re
import signal
from collections.abc import Callable
from typing import Any

from nvct.linux.kernel import Kernel

CALLS = tuple(name for name in vars(Kernel) if not name.startswith("_"))
"""All calls of a Kernel."""

_TEMPORARY = re.compile(r"\.nvct-[0-9a-f]{16}")


class RecordingKernel(Kernel):
    """The real kernel, with a record of its calls in `.calls`.

    Args:
        kill_at: (call, "before" or "after", n): SIGKILL this process at the n-th such call (from 1).
    """

    __slots__ = ("_counts", "_kill_at", "calls")

    def __init__(self, kill_at: tuple[str, str, int] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._kill_at = kill_at
        self._counts: dict[str, int] = {}

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def _passes(self, name: str, when: str) -> None:
        if self._kill_at == (name, when, self._counts[name]):
            os.kill(os.getpid(), signal.SIGKILL)


def _shown(name: str, value: object) -> object:
    if (name == "fd" or name.endswith("_fd")) and isinstance(value, int):
        try:
            value = os.readlink(f"/proc/self/fd/{value}")
        except OSError:
            return value  # AT_FDCWD, or not a descriptor
    return _TEMPORARY.sub(".nvct-*", value) if isinstance(value, str) else value


def _recorded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(real)

    def call(self: RecordingKernel, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = list(bound.arguments.items())[1:]
        self.calls.append((name, *(_shown(key, value) for key, value in given)))
        self._counts[name] = self._counts.get(name, 0) + 1
        self._passes(name, "before")
        result = real(self, *args, **kwargs)
        self._passes(name, "after")
        return result

    return call


for _name in CALLS:
    setattr(RecordingKernel, _name, _recorded(_name, getattr(Kernel, _name)))
