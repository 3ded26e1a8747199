# SPDX-License-Identifier: Apache-2.0
"""Whether a part of a test closes what it opens."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def none_left_open() -> Iterator[None]:
    """Fail if a block leaves a descriptor open.

    Fewer are fine: gRPC's threads and the garbage collector close those of earlier tests.
    """
    before = os.listdir("/proc/self/fd")
    yield
    assert set(os.listdir("/proc/self/fd")) <= set(before), "a descriptor was left open"
