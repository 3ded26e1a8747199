# SPDX-License-Identifier: Apache-2.0
"""What a watch of this Node tells the tasks of the process that do not watch it themselves.

A task that obeys a label watches the Node. Those that write to it hear so at once if somebody has
removed what they wrote, or has deleted the Node, without a request of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# Takes the Node, None if it is deleted.
See: TypeAlias = Callable[[dict[str, Any] | None], None]

_listeners: list[tuple[str, See]] = []


def listen(name: str, see: See) -> Callable[[], None]:
    """Have a function called with each change of a Node; return what ends this."""
    entry = (name, see)
    _listeners.append(entry)
    return lambda: _listeners.remove(entry) if entry in _listeners else None


def tell(name: str, node: dict[str, Any] | None) -> None:
    """Tell the listeners of a Node what it is now."""
    for listener, see in _listeners:
        if listener == name:
            see(node)
