# SPDX-License-Identifier: Apache-2.0
"""Limits in CPU seconds, which are the same on a busy machine; what hangs meets pytest's timeout."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block, with the programs that it runs to their ends, takes more CPU time."""
    before = _spent()
    yield
    spent = _spent() - before
    assert spent < seconds, f"{spent:.2f} s of CPU time"


def _spent() -> float:
    """Return the CPU seconds of this process and of children that it has waited for."""
    return sum(os.times()[:4])
