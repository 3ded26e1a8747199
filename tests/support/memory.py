# SPDX-License-Identifier: Apache-2.0
"""A folder in memory, for tests with many synchronous writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHM = "/dev/shm"


@contextlib.contextmanager
def in_memory(instead: Path) -> Iterator[Path]:
    """Yield a folder in memory, or `instead` if there is none."""
    if not os.access(SHM, os.W_OK):
        yield instead
        return
    with tempfile.TemporaryDirectory(dir=SHM) as made:
        yield Path(made)
