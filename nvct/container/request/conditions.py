# SPDX-License-Identifier: Apache-2.0
"""The conditions of a policy's rules, each a function of what the rule says and of the case.

Hot; loaded only where there are rules. Each answers whether it holds, None where that cannot be
learned, and what was seen, in words.
"""

from __future__ import annotations

from nvct.container.request.case import (
    CONTAINERD_NAMESPACE,
    CONTAINERD_TYPE,
    CRIO_NAMESPACE,
    CRIO_TYPE,
)
from nvct.container.request.visible_devices import is_bus_id, shown
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from nvct.container.request.case import Case
    from nvct.container.request.model import Request

    Held: TypeAlias = "tuple[bool | None, str]"

EXTRAS = {
    "mig-config": "mig_config",
    "mig-monitor": "mig_monitor",
    "imex": "imex",
    "gds": "gds",
    "mofed": "mofed",
    "gdrcopy": "gdrcopy",
    "nvswitch": "nvswitch",
}
WORD_OF = {
    "management.nvidia.com/gpu": "management",
    "nvidia.com/imex-channel": "imex",
    "nvidia.com/gds": "gds",
    "nvidia.com/mofed": "mofed",
    "nvidia.com/gdrcopy": "gdrcopy",
    "nvidia.com/nvswitch": "nvswitch",
}
"""The same, asked for by the names of CDI devices."""


def _by(wanted: Sequence[str], case: Case) -> Held:
    found = case.by
    for word in found:
        if word in wanted:
            return True, case.source
    if None in found and "image-env" in wanted:
        return None, f"{case.source} cannot be understood"
    return False, f"{case.source} is {' and '.join([word for word in found if word])}"


def _asks_for(wanted: Sequence[str], case: Case) -> Held:
    """Hold all that is asked for against words: a rule that knows a part knows too little."""
    if case.request is None:
        return None, "the request cannot be understood"
    needed = _needed(case.names, case.request)
    there = ["all"] if any(name.partition("=")[2] == "all" for name in case.names) else []
    there += [word for word in needed if word not in there]
    hits = [word for word in there if word in wanted]
    if not hits:
        also = [word for word in _words_of_nodes(case) if word in wanted]
        if also:
            return None, f"it would get {', '.join(also)}"
        return False, f"it asks for {', '.join(there)}"
    rest = [word for word in needed if word not in wanted]
    if rest:
        return None, f"it asks for {', '.join(rest)} besides {', '.join(hits)}"
    return True, ", ".join(hits)


def _words_of_nodes(case: Case) -> list[str]:
    """Return the words for the extras that a container would get that a rule wants to refuse."""
    if not (case.refuses and case.injected and case.origin and case.origin.plans):
        return []
    names = case.origin.plans.extras(case.injected)
    kinds = [
        name.replace("nvidia.com/mig=", "nvidia.com/mig-").partition("=")[0] for name in names
    ]
    return sorted({WORD_OF.get(kind, kind.rpartition("/")[2]) for kind in kinds})


def _needed(names: Sequence[str], request: Request) -> list[str]:
    """Return the words for each thing that is asked for; who may have all GPUs may not manage."""
    found = {"none": None} if request.none else {}
    for name in names:
        kind, _, device = name.partition("=")
        ordinary = "all" if device == "all" else "devices"
        found[WORD_OF.get(kind, ordinary)] = None
    extras = [word for word, attribute in EXTRAS.items() if getattr(request.extras, attribute)]
    return [*dict.fromkeys([*found, *extras])]


def _devices(patterns: Sequence[str], case: Case) -> Held:
    """Match all devices, by whatever name: index, UUID and all may be one GPU.

    Extras, which variables bring beside the devices, are devices as well.
    """
    if case.request is None:
        return None, "the request cannot be understood"
    asked = shown(", ".join([*case.names, *case.extras]) or "none")
    fits = [_fits(name, patterns, case) for name in case.names]
    fits += [_fits_extra(name, patterns) for name in case.extras]
    if True not in fits and None not in fits:
        also = _given_too(patterns, case)
        return None if also else False, also or f"{asked} is none of them"
    if all(fits):
        return True, asked
    return None, f"not all of {asked} are known to be among them"


def _given_too(patterns: Sequence[str], case: Case) -> str:
    """Say by what a container would get a device that is named under another name, "" if not.

    Only for a rule that refuses: who is allowed to have a device asks for it by its name.
    """
    found = ""
    nodes = case.injected if case.refuses else {}
    if nodes and case.origin is not None and case.origin.plans is not None:
        plans = case.origin.plans
        extras = [e for e in plans.extras(nodes) if _fits_extra(e, patterns) is not False]
        found = ", ".join(sorted(extras))
        if not found and case.request is not None:
            try:
                stands_for = plans.meant(case.request, nodes, lambda n: _is_among(n, patterns))
                found = stands_for.among(nodes)
            except NvctError as error:
                case.trouble = case.trouble or error
    return found and f"it would get {found}, which is one of them"


def _fits(name: str, patterns: Sequence[str], case: Case) -> bool | None:
    """Tell whether what a name stands for fits, None where only a part does or nobody knows."""
    if name in patterns or (not _is_by_bus(name) and _matches_any(name, patterns)):
        return True
    if case.origin is None or case.origin.known_as is None or case.request is None:
        return None
    devices = case.origin.known_as(case.request, name)
    if devices is None:
        return None
    hits = {_is_among(aliases, patterns) for aliases in devices}
    return None if len(hits) > 1 else True in hits


def _fits_extra(name: str, patterns: Sequence[str]) -> bool | None:
    """Tell whether a rule names an extra, None where its kind is only among those of a star.

    Who writes nvidia.com/* means GPUs, and seldom who may change their MIG devices.
    """
    hits = [pattern for pattern in patterns if matches(name, pattern)]
    named = any("*" not in pattern.partition("=")[0] for pattern in hits)
    return True if named else None if hits else False


def _is_among(aliases: Sequence[str], patterns: Sequence[str]) -> bool:
    """Tell whether a device fits by one of its names.

    By its PCI bus id only if a pattern says just that: the 0* of who means indices is no domain.
    """
    names = [alias for alias in aliases if not _is_by_bus(alias)]
    exactly = [alias for alias in aliases if alias in patterns]
    return bool(exactly) or any(_matches_any(name, patterns) for name in names or aliases)


def _is_by_bus(name: str) -> bool:
    return is_bus_id(name.partition("=")[2])


def _namespaces(patterns: Sequence[str], case: Case) -> Held:
    """Match the namespace; of two that contradict each other, both have to fit.

    Annotations are the engine's word only where the kubelet has made the container.
    """
    annotations = case.annotations
    found = []
    for kind, key in ((CRIO_TYPE, CRIO_NAMESPACE), (CONTAINERD_TYPE, CONTAINERD_NAMESPACE)):
        name = annotations.get(key)
        if kind in annotations and isinstance(name, str) and name and name not in found:
            found.append(name)
    if not found:
        if case.kubernetes:
            return None, "the engine does not say the pod's namespace"
        return False, "the container is in no pod"
    text = " and ".join([shown(name) for name in found])
    hits = [_matches_any(name, patterns) for name in found]
    if any(hits) and not case.is_kubelets:
        return None, f"{text}, but the container is in no cgroup of the kubelet"
    if all(hits) == any(hits):
        return all(hits), text
    return None, f"the annotations contradict each other: {text}"


def _annotations(wanted: Mapping[str, Sequence[str]], case: Case) -> Held:
    for key, patterns in wanted.items():
        value = case.annotations.get(key)
        if not isinstance(value, str):
            return False, f"there is no {key}"
        if not _matches_any(value, patterns):
            return False, f"{key} is {shown(value)}"
    return True, ", ".join([f"{key}={shown(str(case.annotations[key]))}" for key in wanted])


def _cgroups(patterns: Sequence[str], case: Case) -> Held:
    if case.origin is None:
        return None, "the cgroup is not known"
    path = case.origin.cgroup
    if not path:
        return False, "config.json names no cgroup"
    if "/" in path:
        from nvct.container.request.volume_mounts import clean  # rarely asked for

        path = clean(path)
    return _matches_any(path, patterns), shown(path)


def _users(ranges: Sequence[Sequence[int]], case: Case) -> Held:
    owner = case.origin.owner() if case.origin is not None else None
    if owner is None:
        return None, "the host user is not known"
    return any(low <= owner <= high for low, high in ranges), f"host user {owner}"


def _kubernetes(wanted: bool, case: Case) -> Held:  # noqa: FBT001  a condition's signature
    there = case.is_kubelets
    if not there and case.is_annotated:
        return None, "its annotations say that it is a pod's container, its cgroup does not"
    if not there and case.origin is None:
        return None, "it is not known whether it is a pod's container"
    return there == wanted, "it is a pod's container" if there else "it is no pod's container"


def _privileged(wanted: bool, case: Case) -> Held:  # noqa: FBT001  a condition's signature
    there = case.privileged
    return there == wanted, f"it has {'' if there else 'no '}CAP_SYS_ADMIN on the host"


def _more_gpus_than(most: int, case: Case) -> Held:
    if case.request is None:
        return None, "the request cannot be understood"
    number = 0
    for name in case.names:
        kind, _, device = name.partition("=")
        if device != "all":
            number += 1
        elif case.origin is None or case.origin.count is None:
            return None, f"it is not known how many {name} are"
        else:
            asked = kind if name in case.request.ids else case.request.kind
            number += case.origin.count(case.request, asked)
    if number <= most:
        number = max(number, _gpus(case))
    return number > most, f"{number} asked for"


def _gpus(case: Case) -> int:
    """Return how many NVIDIA GPUs a container would get that a rule wants to refuse."""
    if not (case.refuses and case.injected):
        return 0
    from nvct.container.request.device_numbers import is_gpu

    return sum(map(is_gpu, case.injected))


CONDITIONS: dict[str, Callable[..., Held]] = {
    "annotations": _annotations,
    "asks-for": _asks_for,
    "by": _by,
    "cgroups": _cgroups,
    "devices": _devices,
    "kubernetes": _kubernetes,
    "namespaces": _namespaces,
    "privileged": _privileged,
    "users": _users,
    "more-gpus-than": _more_gpus_than,  # last: it may have to look at a plan
}


def _matches_any(text: str, patterns: Sequence[str]) -> bool:
    return any(matches(text, pattern) for pattern in patterns)


def matches(text: str, pattern: str) -> bool:
    """Tell whether a text fits a pattern, in which * stands for anything; everything counts."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    last = rest.pop()
    if not (text.startswith(first) and text.endswith(last)):
        return False
    if len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in rest:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
