# SPDX-License-Identifier: Apache-2.0
"""What a container asks for: annotations, then volume mounts, then the environment.

Hot, and security relevant: everything but the configuration is the container's word. Precedence
and privilege are nvidia-container-toolkit v1.20's; design section 7 says what unset, empty, void
and none mean. Contract: no request gives None and never an error about anything else in the
container; a request that can't be understood is an error; nothing widens a request.
"""

from __future__ import annotations

from nvct.cdi.names import is_qualified
from nvct.config.model import MODES
from nvct.container.request import visible_devices
from nvct.container.request.model import EXTRAS, RUNTIME_KIND, VISIBLE_DEVICES, Request
from nvct.errors import ConfigError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from nvct.config.model import Config
    from nvct.container.request.model import Env
    from nvct.container.request.origin import Origin
    from nvct.errors import NvctError

    Defined: TypeAlias = Callable[[str], bool]
    Found: TypeAlias = "tuple[str, list[str]]"

VOLUME_MOUNT_NAME = "nvidia-container-devices"
CAP_SYS_ADMIN = "CAP_SYS_ADMIN"


def resolve(
    env: Sequence[object],
    mounts: Sequence[Mapping[str, object]],
    annotations: Mapping[str, object],
    bounding: Sequence[object],
    config: Config,
) -> Request | None:
    """Return what a container asks for, or None if it is to stay untouched.

    Args:
        env: process.env of config.json.
        mounts: its mounts.
        annotations: its annotations.
        bounding: process.capabilities.bounding; CAP_SYS_ADMIN in it means privileged.
        config: the configuration.

    Raises:
        RequestError: there is a request that cannot be understood.
        ConfigError: there is a request, and the configured mode does not exist.
    """
    return decide(env, mounts, annotations, bounding, config)[0]


def decide(
    env: Sequence[object],
    mounts: Sequence[Mapping[str, object]],
    annotations: Mapping[str, object],
    bounding: Sequence[object],
    config: Config,
    *,
    origin: Origin | None = None,
    defined: Defined | None = None,
) -> tuple[Request | None, list[str]]:
    """As `resolve`, with the notes, which there may be where there is no request as well.

    What the rules of the policy cannot learn of its origin counts against the container. `defined`
    tells whether a CDI specification has a device of a full name: a bare word is a device then,
    even if no driver gives such names.

    Raises:
        RequestError, ConfigError: as `resolve`.
        NotPermittedError: the policy denies the request.
    """
    variables, privileged = parse_env(env), CAP_SYS_ADMIN in bounding
    notes: list[str] = []
    found = _find(variables, mounts, annotations, config, notes, privileged=privileged)
    if found is None:
        return None, notes
    trouble: NvctError | None
    request, trouble = _understood(
        found, variables, mounts, config, notes, privileged=privileged, defined=defined
    )
    if request is None and trouble is None:
        return None, notes
    if config.policy:
        from nvct.container.request.case import Case  # only where config.toml has rules
        from nvct.container.request.policy import admits

        case = Case(request, found[0], annotations, config, origin, privileged=privileged)
        case.trouble = trouble
        if not admits(case, notes):
            return None, notes
        trouble = case.trouble
    if trouble is not None:
        raise trouble
    return request, notes


def _understood(
    found: Found,
    variables: Env,
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    notes: list[str],
    *,
    privileged: bool,
    defined: Defined | None,
) -> tuple[Request | None, RequestError | None]:
    """Return the request as far as it can be understood, and why not further.

    A rule of the policy may concern who asks for what cannot be had.
    """
    request: Request | None = None
    try:
        request = _request(*found, config, defined)
        if request is None:
            return None, None
        request.notes = notes
        may_ask = config.accept_volume_mounts or not EXTRAS.isdisjoint(variables)
        if may_ask and request.mode != "cdi":
            from nvct.container.request.extras import add  # few containers ask for any

            add(request, variables, mounts, config, privileged=privileged)
        if _is_for_nvidia(request):
            _add_conditions(request, variables, config)
    except RequestError as error:
        return request, error
    return request, None


def parse_env(env: Sequence[object]) -> Env:
    """Return the variables of process.env; a later one of the same name wins.

    What is no string with an "=" is no variable. (The incumbent fails the create; a
    container that asks for nothing must never fail.)
    """
    variables: Env = {}
    for entry in env:
        if not isinstance(entry, str):
            continue
        name, equals, value = entry.partition("=")
        if equals:
            variables[name] = value
    return variables


def is_legacy_image(variables: Env) -> bool:
    """Tell whether an image is of the kind that gets all GPUs without asking.

    CUDA images of before 2018 set CUDA_VERSION and no NVIDIA_* variables.
    """
    return bool(variables.get("CUDA_VERSION")) and "NVIDIA_REQUIRE_CUDA" not in variables


def _find(
    variables: Env,
    mounts: Sequence[Mapping[str, object]],
    annotations: Mapping[str, object],
    config: Config,
    notes: list[str],
    *,
    privileged: bool,
) -> Found | None:
    """Return the first source that has words, and the words."""
    if annotations:
        from nvct.container.request.annotations import (
            find as find_annotations,  # only where there are any
        )

        found = find_annotations(annotations, config, notes)
        if found is not None:
            return found
    if config.accept_volume_mounts:
        from nvct.container.request.volume_mounts import SOURCE, devices  # rarely accepted

        words = devices(mounts)
        if words:
            return SOURCE, words
    elif any(VOLUME_MOUNT_NAME in str(mount.get("destination")) for mount in mounts):
        from nvct.container.request.volume_mounts import note_ignored  # just as rarely there

        note_ignored(mounts, notes)
    return _find_env(variables, config, notes, privileged=privileged)


def _find_env(
    variables: Env, config: Config, notes: list[str], *, privileged: bool
) -> Found | None:
    swarm = [name for name in config.swarm_resource if name in variables]
    source = ", ".join(swarm) or VISIBLE_DEVICES
    value = ",".join([variables[name] for name in swarm or [VISIBLE_DEVICES] if name in variables])
    implied = not swarm and VISIBLE_DEVICES not in variables and is_legacy_image(variables)
    if implied:
        source, value = "CUDA_VERSION", "all"
    if value.strip(visible_devices.BLANK + ",") in {"", "void"}:
        return None
    if not privileged and not config.accept_envvar_when_unprivileged:
        # The value is not even read: a typo in what is ignored must not fail the create.
        notes.append(
            f"{source}={visible_devices.shown(value)} is ignored: the container is unprivileged"
            " and accept-nvidia-visible-devices-envvar-when-unprivileged is false"
        )
        return None
    if implied:
        notes.append(
            "all GPUs, because CUDA_VERSION is set and NVIDIA_VISIBLE_DEVICES and"
            " NVIDIA_REQUIRE_CUDA are not"
        )
    return source, visible_devices.split(value, source)


def _request(
    source: str, words: list[str], config: Config, defined: Defined | None
) -> Request | None:
    named: list[str] = []

    def check(word: str, source: str) -> None:
        try:
            visible_devices.check_word(word, source)
        except RequestError:
            name = f"{config.default_kind}={word}"
            if defined is None or "=" in word or not (is_qualified(name) and defined(name)):
                raise
            named.append(word)

    ids = visible_devices.evaluate(words, source, check=check)
    if ids is None:
        return None
    prefix = visible_devices.JIT_PREFIX
    jit = [word for word in ids if word.startswith(prefix)]
    _refuse_mixture(ids, jit, source)
    if jit:
        # The incumbent's name, in any mode, for what it generates on demand: here the same
        # devices under their plain names.
        ids = visible_devices.evaluate([word[len(prefix) :] for word in jit], source) or []
    request = Request(ids, source)
    request.mode = _mode(request, config)
    if jit and request.mode == "cdi":
        request.mode = "jit-cdi"
    elif request.mode == "cdi" or any(word in ids for word in named):
        request.kind = config.default_kind
    if request.mode != "cdi":
        _refuse_mixture(ids, [word for word in ids if "=" in word], source)
        if request.kind == RUNTIME_KIND:
            request.ids = list(dict.fromkeys(map(visible_devices.plain_bus_id, ids)))
    return request


def _refuse_mixture(ids: list[str], kin: list[str], source: str) -> None:
    """Refuse ids of which some but not all are of a kind that is delivered in a way of its own."""
    if kin and len(kin) < len(ids):
        raise RequestError(
            f"{source} mixes the CDI name {visible_devices.shown(kin[0])} with other names",
            hint="write only names of that kind, or none of them",
        )


def _mode(request: Request, config: Config) -> str:
    mode = config.mode
    if mode in {"legacy", "csv", "cdi"}:
        return mode
    if mode in {"auto", "jit-cdi"}:
        return "cdi" if request.qualified else "jit-cdi"
    raise ConfigError(
        f"{config.path or 'the configuration'}: nvidia-container-runtime.mode cannot be {mode!r}",
        hint=f"use one of: {', '.join(MODES)}",
    )


def _is_for_nvidia(request: Request) -> bool:
    """Tell whether any device is NVIDIA's: other vendors' have no such driver."""
    kinds = [word.partition("/")[0] for word in request.ids if "=" in word]
    return (
        len(kinds) < len(request.ids)
        or request.none
        or any(kind == "nvidia.com" or kind.endswith(".nvidia.com") for kind in kinds)
    )


def _add_conditions(request: Request, variables: Env, config: Config) -> None:
    """Add what the driver has to be, and which of its parts are wanted.

    nvidia-container-toolkit v1.20 does so in the modes legacy and csv only; its default mode
    ignores both variables. Unset, legacy mode means compute and utility, the others everything.
    """
    legacy_image = is_legacy_image(variables)
    if legacy_image or "NVIDIA_REQUIRE_" in " ".join(variables):
        from nvct.container.request import requirements  # CUDA images have one, others do not

        request.requirements = requirements.gather(
            variables, legacy_image=legacy_image, disabled=config.disable_require
        )
    value = variables.get("NVIDIA_DRIVER_CAPABILITIES")
    if value is not None or request.mode == "legacy" or config.bounds_capabilities:
        from nvct.container.request import capabilities

        everything = legacy_image or request.mode != "legacy"
        request.capabilities = capabilities.resolve(
            value, config.supported_driver_capabilities, legacy_image=everything
        )
