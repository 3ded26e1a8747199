# SPDX-License-Identifier: Apache-2.0
"""Requests besides GPUs: host features, IMEX channels, MIG capabilities.

Hot; loaded only if a container may request any. The rules about mode and privilege are those of
nvidia-container-toolkit v1.20.
"""

from __future__ import annotations

from nvct.container.request.model import FEATURES, IMEX, JETPACK, MIG_CAPABILITIES
from nvct.container.request.visible_devices import evaluate, is_index, shown, split
from nvct.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.config.model import Config
    from nvct.container.request.model import Env, Request

PREFIX = "channel"
CHANNEL_LIMIT = 1 << 20
HINT = f"use numbers from 0 to {CHANNEL_LIMIT - 1}"


def add(
    request: Request,
    variables: Env,
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    *,
    privileged: bool,
) -> None:
    """Add the extras that variables and mounts ask for.

    Raises RequestError for a malformed value, NotPermittedError for one that needs privileges.
    """
    extras = request.extras
    for name, variable in FEATURES.items():
        setattr(extras, name, variables.get(variable) == "enabled")
    if not config.ignore_imex and (IMEX in variables or config.accept_volume_mounts):
        extras.imex = channels(variables, mounts, config, request.notes, privileged=privileged)
        # Under these conditions the incumbent creates the nodes of the host.
        creates = config.cli_load_kmods and not config.disable_imex_channel_creation
        extras.imex_unmade = creates and request.mode == "legacy"
    extras.csv_all = variables.get(JETPACK) == "csv-mounts=all"
    for name, variable in MIG_CAPABILITIES.items():
        value = variables.get(variable)
        if not value:
            continue
        if request.mode != "legacy" and not privileged:
            # The incumbent reads the variable only in legacy mode, where it refuses the container.
            request.notes.append(f"{variable} is ignored: the container is unprivileged")
            continue
        from nvct.container.request.capabilities import check_mig_capability  # rarely requested

        check_mig_capability(variable, value, privileged=privileged)
        setattr(extras, name, True)


def channels(
    variables: Mapping[str, str],
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    notes: list[str],
    *,
    privileged: bool,
) -> list[int]:
    """Return the distinct numbers of the requested IMEX channels, in order.

    Grammar and privilege are those of devices. "none" requests no channel; the incumbent (v1.20)
    gives every channel. "all" requests no channel either: an old image that gets all GPUs must not
    get all channels as well. Raises RequestError if a word is not a channel.
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
    raise RequestError(f"{source} asks for {shown(word)}, which is not an IMEX channel", hint=HINT)
