# SPDX-License-Identifier: Apache-2.0
"""Finds a container's request: annotations, mounts, or its environment (not if unprivileged).

Hot, and security relevant: the container controls all input except the configuration. Precedence
and privilege are those of nvidia-container-toolkit v1.20. Contract: a container without a request
gets None, whatever else it contains; a malformed request is an error; nothing widens a request.
"""

from __future__ import annotations

from nvct.cdi.names import is_qualified
from nvct.config.model import MODES
from nvct.container.request import visible_devices
from nvct.container.request.model import (
    BY_ANNOTATION,
    CAPABILITIES,
    EXTRAS,
    JETPACK,
    RUNTIME_KIND,
    VISIBLE_DEVICES,
    Request,
)
from nvct.errors import ConfigError, RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from nvct.config.model import Config
    from nvct.container.request.kubelet_record import Answer
    from nvct.container.request.model import Env
    from nvct.container.request.origin import Origin
    from nvct.errors import NvctError

    Defined: TypeAlias = Callable[[str], bool]
    Source: TypeAlias = "tuple[str, list[str]]"

GIVEN = EXTRAS - {JETPACK}
"""Variables that ask for devices; `given_by` takes them only from a device plugin's answer."""
VOLUME_MOUNT_NAME = "nvidia-container-devices"
CAP_SYS_ADMIN = "CAP_SYS_ADMIN"


def resolve_request(
    env: Sequence[object],
    mounts: Sequence[Mapping[str, object]],
    annotations: Mapping[str, object],
    bounding: Sequence[object],
    config: Config,
    *,
    origin: Origin | None = None,
    defined: Defined | None = None,
    choose: Callable[[Request], None] | None = None,
) -> tuple[Request | None, list[str]]:
    """Return the request of a container, None if it stays unchanged, and notes in either case.

    Args:
        bounding: process.capabilities.bounding; with CAP_SYS_ADMIN the container is privileged.
        origin: of the container; an unknown one counts against it in policy rules.
        defined: reports whether a CDI spec defines the device of a full name; the device may then
            be requested without its kind, even if no NVIDIA driver uses such names.
        choose: puts devices into a request for free ones, before rules decide; without it, such a
            request is refused.

    Raises:
        RequestError: the request is malformed, or `choose` refuses it.
        ConfigError: there is a request, and the configured mode does not exist.
        NotPermittedError: the policy denies the request.
    """
    variables, privileged = parse_env(env), CAP_SYS_ADMIN in bounding
    notes: list[str] = []
    source = _find(variables, mounts, annotations, config, notes, privileged=privileged)
    if source is None:
        return None, notes
    error: NvctError | None
    request, error = _parse(
        source, variables, mounts, config, notes, privileged=privileged, defined=defined
    )
    if request is None and error is None:
        return None, notes
    if request is not None and request.free is not None and error is None:
        if choose is None:
            raise RequestError(f"{source[0]} asks for {request.free.word}", hint="name devices")
        choose(request)
    if config.policy:
        from nvct.container.request.case import Case  # only if config.toml has rules
        from nvct.container.request.policy import admits

        case = Case(request, source[0], annotations, config, origin, privileged=privileged)
        case.error = error
        case.parse = lambda answer: given_by(
            answer, source[0], variables, config, notes, privileged=privileged, defined=defined
        )
        if not admits(case, notes) or case.is_given:
            return case.given, notes
        error = case.error
    if error is not None:
        raise error
    return request, notes


def given_by(
    answer: Answer,
    source: str,
    variables: Env,
    config: Config,
    notes: list[str],
    *,
    privileged: bool,
    defined: Defined | None,
) -> Request | None:
    """Return the request that a device plugin has put into a container, None if there is none.

    The answer's annotations do not count if the container's `source` is not an annotation, because
    the engine has not passed them on. The container's `variables` choose driver files, but no
    device. Raises RequestError if the answer is malformed.
    """
    env, mounts = answer.env, answer.mounts
    found = _find(env, mounts, answer.annotations, config, [], privileged=privileged)
    if found is None:
        return None
    if found[0].startswith(BY_ANNOTATION) and not source.startswith(BY_ANNOTATION):
        return None
    others = {name: text for name, text in variables.items() if name not in GIVEN}
    request, error = _parse(
        found, {**others, **env}, mounts, config, notes, privileged=privileged, defined=defined
    )
    if error is not None:
        raise error
    return request


def _parse(
    source: Source,
    variables: Env,
    mounts: Sequence[Mapping[str, object]],
    config: Config,
    notes: list[str],
    *,
    privileged: bool,
    defined: Defined | None,
) -> tuple[Request | None, RequestError | None]:
    """Return the request, possibly incomplete, and the error that ended parsing.

    Policy rules apply to malformed requests as well.
    """
    request: Request | None = None
    try:
        request = _request(*source, config, defined)
        if request is None:
            return None, None
        request.notes = notes
        has_extras = config.accept_volume_mounts or not EXTRAS.isdisjoint(variables)
        if has_extras and request.mode != "cdi":
            from nvct.container.request.besides_gpus import add  # rarely requested

            add(request, variables, mounts, config, privileged=privileged)
        if _is_for_nvidia(request):
            _add_conditions(request, variables, config)
    except RequestError as error:
        return request, error
    return request, None


def parse_env(env: Sequence[object]) -> Env:
    """Return the variables of process.env; the last one of a name wins.

    An entry that is not a string with "=" is ignored. The incumbent fails the create, but a
    container without a request must never fail.
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
    """Report whether an image gets all GPUs without a request.

    CUDA images from before 2018 set CUDA_VERSION and no NVIDIA_* variables.
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
) -> Source | None:
    if annotations:
        from nvct.container.request.annotations import requested  # few containers have any

        source = requested(annotations, config, notes)
        if source is not None:
            return source
    if config.accept_volume_mounts:
        from nvct.container.request.volume_mounts import SOURCE, devices  # rarely accepted

        words = devices(mounts)
        if words:
            return SOURCE, words
    elif any(VOLUME_MOUNT_NAME in str(mount.get("destination")) for mount in mounts):
        from nvct.container.request.volume_mounts import note_ignored  # rarely present

        note_ignored(mounts, notes)
    return _find_env(variables, config, notes, privileged=privileged)


def _find_env(
    variables: Env, config: Config, notes: list[str], *, privileged: bool
) -> Source | None:
    swarm = [name for name in config.swarm_resource if name in variables]
    source = ", ".join(swarm) or VISIBLE_DEVICES
    value = ",".join([variables[name] for name in swarm or [VISIBLE_DEVICES] if name in variables])
    implied = not swarm and VISIBLE_DEVICES not in variables and is_legacy_image(variables)
    if implied:
        source, value = "CUDA_VERSION", "all"
    if value.strip(visible_devices.BLANK + ",") in {"", "void"}:
        return None
    if not privileged and not config.accept_envvar_when_unprivileged:
        # The value is not parsed: a typo in an ignored value must not fail the create.
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
    has_free = False

    def check(word: str, source: str) -> None:
        nonlocal has_free
        try:
            visible_devices.check_word(word, source)
        except RequestError:
            if word.startswith("free:"):
                has_free = True
                return
            name = f"{config.default_kind}={word}"
            if defined is None or "=" in word or not (is_qualified(name) and defined(name)):
                raise
            named.append(word)

    ids = visible_devices.evaluate(words, source, check=check)
    if ids is None:
        return None
    free = None
    if has_free:
        from nvct.container.request.free import want_of  # few ask for it

        free = want_of(words, source)
    prefix = visible_devices.JIT_PREFIX
    jit = [word for word in ids if word.startswith(prefix)]
    _refuse_mixture(ids, jit, source)
    if jit:
        # The incumbent's names, in any mode, for devices that it generates on demand; nvct gives
        # the same devices by their plain names.
        ids = visible_devices.evaluate([word[len(prefix) :] for word in jit], source) or []
    request = Request(ids, source)
    request.free = free
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


def _refuse_mixture(ids: list[str], special: list[str], source: str) -> None:
    """Refuse a list with both special and other ids, which come from different plans."""
    if special and len(special) < len(ids):
        raise RequestError(
            f"{source} mixes the CDI name {visible_devices.shown(special[0])} with other names",
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
    """Report whether a request has an NVIDIA device; others have no driver requirements."""
    kinds = [word.partition("/")[0] for word in request.ids if "=" in word]
    return (
        len(kinds) < len(request.ids)
        or request.none
        or any(kind == "nvidia.com" or kind.endswith(".nvidia.com") for kind in kinds)
    )


def _add_conditions(request: Request, variables: Env, config: Config) -> None:
    """Add driver requirements and driver capabilities to a request.

    nvidia-container-toolkit v1.20 does this in modes legacy and csv only; its default mode ignores
    both variables. Unset capabilities mean compute and utility in mode legacy, else all.
    """
    legacy_image = is_legacy_image(variables)
    if legacy_image or "NVIDIA_REQUIRE_" in " ".join(variables):
        from nvct.container.request import requirements  # few images except CUDA's have any

        request.requirements = requirements.gather(
            variables, legacy_image=legacy_image, disabled=config.disable_require
        )
    value = variables.get(CAPABILITIES)
    if value is not None or request.mode == "legacy" or config.bounds_capabilities:
        from nvct.container.request import capabilities

        everything = legacy_image or request.mode != "legacy"
        request.capabilities = capabilities.resolve(
            value, config.supported_driver_capabilities, legacy_image=everything
        )
