# SPDX-License-Identifier: Apache-2.0
"""What an input led to: an answer, a refusal, or a finding."""

from __future__ import annotations

from contextlib import contextmanager

from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.targets import Target


def try_one(target: Target, data: bytes) -> bool:
    """Return whether a target accepts an input; its own refusals are answers."""
    try:
        return target.run(data)
    except NvctError:
        return False


@contextmanager
def written_by_us() -> Iterator[None]:
    """Make a refusal of what nvct itself wrote a finding."""
    try:
        yield
    except NvctError as error:
        raise AssertionError(f"nvct refuses what it wrote: {error.message}") from error
