# SPDX-License-Identifier: Apache-2.0
"""Requests for IMEX channels: NVIDIA_IMEX_CHANNELS, or volume mounts below imex/.

Hot; loaded only if one of the two may exist. Grammar and privilege are those of devices. "none"
requests no channel; the incumbent (v1.20) gives every channel. "all" requests no channel either:
an old image that gets all GPUs must not get all channels as well.
"""

from __future__ import annotations

from nvct.container.request.model import IMEX
from nvct.container.request.visible_devices import evaluate, is_index, shown, split
from nvct.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.config.model import Config

PREFIX = "channel"
CHANNEL_LIMIT = 1 << 20
HINT = f"use numbers from 0 to {CHANNEL_LIMIT - 1}"


def channels(
    variables: Mapping[str, str],
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    notes: list[str],
    *,
    privileged: bool,
) -> list[int]:
    """Return the distinct numbers of the requested channels, in order.

    Raises:
        RequestError: a word is not a channel.
    """
    if config.ignore_imex:
        return []
    if config.accept_volume_mounts:
        from nvct.container.request.volume_mounts import SOURCE, imex_channels  # rarely accepted

        words = imex_channels(mounts)
        if words:
            return _numbers(words, SOURCE)
    words = []
    if IMEX in variables:
        if not privileged and not config.accept_envvar_when_unprivileged:
            notes.append(f"{IMEX} is ignored: the container is unprivileged")
        else:
            words = evaluate(split(variables[IMEX], IMEX), IMEX, check=_number) or []
    return [] if words == ["all"] else _numbers(words, IMEX)


def _numbers(words: list[str], source: str) -> list[int]:
    return list(dict.fromkeys(_number(word, source) for word in words))


def _number(word: str, source: str) -> int:
    digits = word[len(PREFIX) :] if word.startswith(PREFIX) else word
    if is_index(digits):
        number = int(digits)
        if number < CHANNEL_LIMIT:
            return number
    raise RequestError(f"{source} asks for {shown(word)}, which is no IMEX channel", hint=HINT)
