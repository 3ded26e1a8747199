# SPDX-License-Identifier: Apache-2.0
"""Passes changes of this Node to the tasks of the process that do not watch it themselves.

A task that obeys a label watches the Node. So the tasks that write to the Node learn at once, and
without a request, that somebody has removed what they wrote, or has deleted the Node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# Takes the Node, None if it is deleted.
See: TypeAlias = Callable[[dict[str, Any] | None], None]

_listeners: list[tuple[str, See]] = []


def listen(name: str, see: See) -> Callable[[], None]:
    """Call a function at each change of a Node; return a function that ends this."""
    entry = (name, see)
    _listeners.append(entry)
    return lambda: _listeners.remove(entry) if entry in _listeners else None


def tell(name: str, node: dict[str, Any] | None) -> None:
    """Pass the present state of a Node to its listeners."""
    for listener, see in _listeners:
        if listener == name:
            see(node)
