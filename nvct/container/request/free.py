# SPDX-License-Identifier: Apache-2.0
"""The word free:N of a request: any N GPUs that nobody uses, for a host without a scheduler.

Hot; loaded only for that word. free:N@memory>=40Gi asks for GPUs of that size, in Ki, Mi, Gi or
Ti; free:N@profile=1g.10gb for MIG devices of a profile. The word stands alone in its list.
"""

from __future__ import annotations

from nvct.container.request.visible_devices import is_index, shown
from nvct.errors import RequestError

PREFIX = "free:"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
MEMORY, PROFILE = "memory>=", "profile="
HINT = f"write free:1, free:2, free:1@{MEMORY}40Gi or free:1@{PROFILE}1g.10gb"
PROFILE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.+-")


class Want:
    """What a word free:N asks for.

    Attributes:
        count: of devices, at least 1.
        memory: bytes that each has at least; 0 for any.
        profile: of MIG devices, as 1g.10gb; "" for GPUs that are not in MIG mode.
    """

    __slots__ = ("count", "memory", "profile", "word")

    def __init__(self, word: str, source: str) -> None:
        """Read a word.

        Raises:
            RequestError: it is malformed.
        """
        self.word = word
        self.memory = 0
        self.profile = ""
        number, *conditions = word[len(PREFIX) :].split("@")
        if not is_index(number) or number == "0":
            raise _malformed(word, source)
        self.count = int(number)
        for condition in conditions:
            if condition.startswith(MEMORY) and not self.memory:
                size = condition[len(MEMORY) :]
                if not is_index(size[:-2]) or size[-2:] not in UNITS:
                    raise _malformed(word, source)
                self.memory = int(size[:-2]) * UNITS[size[-2:]]
            elif condition.startswith(PROFILE) and not self.profile:
                self.profile = condition[len(PROFILE) :]
            else:
                raise _malformed(word, source)
            if not (self.memory or self.profile) or set(self.profile) - PROFILE_CHARACTERS:
                raise _malformed(word, source)


def _malformed(word: str, source: str) -> RequestError:
    return RequestError(f"{source} asks for {shown(word)}, which is malformed", hint=HINT)


def want_of(words: list[str], source: str) -> Want | None:
    """Return what a list of words asks for if one of them is free:N, else None.

    Raises:
        RequestError: the word is malformed, or does not stand alone.
    """
    wants = [word for word in words if word.startswith(PREFIX)]
    if not wants:
        return None
    if len(words) > 1:
        raise RequestError(
            f"{source} mixes {shown(wants[0])} with other names", hint="write it alone"
        )
    return Want(wants[0], source)
