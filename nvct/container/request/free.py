# SPDX-License-Identifier: Apache-2.0
"""The word free:N of a request: any N GPUs that nobody uses, for a host without a scheduler.

Hot; loaded only for that word. free:N@memory>=40Gi asks for GPUs of that size, in Ki, Mi, Gi or
Ti; free:N@profile=1g.10gb for MIG devices of a profile. The word stands alone in its list.
"""

from __future__ import annotations

from nvct.container.request.model import Want
from nvct.container.request.visible_devices import is_index, shown
from nvct.errors import RequestError

PREFIX = "free:"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
MEMORY, PROFILE = "memory>=", "profile="
HINT = f"write free:2, free:1@{MEMORY}40Gi (or Mi, Ti) or free:1@{PROFILE}1g.10gb, without spaces"
PROFILE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.+-")


def parse(word: str, source: str) -> Want:
    """Return what a word free:N asks for. Raises RequestError if it is malformed."""
    number, *conditions = word[len(PREFIX) :].split("@")
    if not is_index(number) or number == "0":
        raise _malformed(word, source)
    want = Want(word, int(number))
    for condition in conditions:
        size = condition[len(MEMORY) :]
        if condition.startswith(MEMORY) and not want.memory:
            if not is_index(size[:-2]) or size[-2:] not in UNITS or size[:-2] == "0":
                raise _malformed(word, source)
            want.memory = int(size[:-2]) * UNITS[size[-2:]]
        elif condition.startswith(PROFILE) and not want.profile:
            want.profile = condition[len(PROFILE) :]
            if not want.profile or set(want.profile) - PROFILE_CHARACTERS:
                raise _malformed(word, source)
        else:
            raise _malformed(word, source)
    return want


def _malformed(word: str, source: str) -> RequestError:
    return RequestError(f"{source} asks for {shown(word)}, which is malformed", hint=HINT)


def want_of(words: list[str], source: str) -> Want | None:
    """Return what free:N among words asks for, else None; RequestError if it is not alone."""
    wants = [word for word in words if word.startswith(PREFIX)]
    if not wants:
        return None
    if len(words) > 1:
        raise RequestError(
            f"{source} mixes {shown(wants[0])} with other names", hint="write it alone"
        )
    return parse(wants[0], source)
