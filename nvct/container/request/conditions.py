# SPDX-License-Identifier: Apache-2.0
"""The conditions of policy rules, each a function of the rule's value and of the case.

Hot; loaded only if the policy has rules. A condition returns whether it holds, None if that is
unknown, and the reason as text.
"""

from __future__ import annotations

from nvct.container.request.case import (
    CONTAINERD_NAMESPACE,
    CONTAINERD_TYPE,
    CRIO_NAMESPACE,
    CRIO_TYPE,
    IMEX_KIND,
)
from nvct.container.request.model import FEATURES
from nvct.container.request.visible_devices import is_bus_id, shown
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from nvct.container.request.case import Case
    from nvct.container.request.model import Request

    Held: TypeAlias = "tuple[bool | None, str]"

FREE = "free"
EXTRAS = ("mig_config", "mig_monitor", "imex", *FEATURES)
"""Attributes of `Extras`; the words of the condition have dashes in them."""
WORD_OF = {
    "management.nvidia.com/gpu": "management",
    IMEX_KIND: "imex",
    **{f"nvidia.com/{name}": name for name in FEATURES},
}
"""The words for requests by CDI device name."""


def _by(values: Sequence[str], case: Case) -> Held:
    sources = case.by
    for word in sources:
        if word in values:
            return True, case.source
    if None in sources and "image-env" in values:
        return None, f"{case.source} cannot be understood"
    return False, f"{case.source} is {' and '.join([word for word in sources if word])}"


def _asks_for(values: Sequence[str], case: Case) -> Held:
    """Compare the whole request; a rule that covers a part of it does not decide."""
    if case.request is None:
        return None, "the request cannot be understood"
    needed = _needed(case.names, case.request)
    if case.request.free and FREE in values:
        needed = [FREE if word == "devices" else word for word in needed]
    words = ["all"] if any(name.partition("=")[2] == "all" for name in case.names) else []
    words += [word for word in needed if word not in words]
    hits = [word for word in words if word in values]
    if not hits:
        implied = [word for word in _words_of_nodes(case) if word in values]
        if implied:
            return None, f"it would get {', '.join(implied)}"
        return False, f"it asks for {', '.join(words)}"
    uncovered = [word for word in needed if word not in values]
    if uncovered:
        return None, f"it asks for {', '.join(uncovered)} besides {', '.join(hits)}"
    return True, ", ".join(hits)


def _words_of_nodes(case: Case) -> list[str]:
    """Return the words for the extras that a container would get, for a rule that refuses."""
    if not (case.refuses and case.injected and case.plans):
        return []
    names = case.plans.extras(case.injected)
    kinds = [
        name.replace("nvidia.com/mig=", "nvidia.com/mig-").partition("=")[0] for name in names
    ]
    return sorted({WORD_OF.get(kind, kind.rpartition("/")[2]) for kind in kinds})


def _needed(names: Sequence[str], request: Request) -> list[str]:
    """Return a word for each requested thing; "all" does not include management devices."""
    words = {"none": None} if request.none else {}
    for name in names:
        kind, _, device = name.partition("=")
        ordinary = "all" if device == "all" else "devices"
        words[WORD_OF.get(kind, ordinary)] = None
    extras = [name.replace("_", "-") for name in EXTRAS if getattr(request.extras, name)]
    return [*dict.fromkeys([*words, *extras])]


def _devices(patterns: Sequence[str], case: Case) -> Held:
    """Match all devices by any of their names: an index, a UUID and "all" may be the same GPU.

    Extras, which other variables request, are devices as well.
    """
    if case.request is None:
        return None, "the request cannot be understood"
    listed = shown(", ".join([*case.names, *case.extras]) or "none")
    fits = [_fits(name, patterns, case) for name in case.names]
    fits += [_fits_extra(name, patterns) for name in case.extras]
    if True not in fits and None not in fits:
        implied = _implied(patterns, case)
        return None if implied else False, implied or f"{listed} is none of them"
    if all(fits):
        return True, listed
    return None, f"not all of {listed} are known to be among them"


def _implied(patterns: Sequence[str], case: Case) -> str:
    """Return why a container would get a matching device under another name, "" if it would not.

    Only for rules that refuse: a container with permission requests the device by its name.
    """
    path = ""
    nodes = case.injected if case.refuses else {}
    plans = case.plans
    if nodes and plans is not None:
        extras = [e for e in plans.extras(nodes) if _fits_extra(e, patterns) is not False]
        path = ", ".join(sorted(extras))
        if not path and case.request is not None:
            try:
                selection = plans.select(case.request, nodes, lambda n: _is_among(n, patterns))
                path = selection.among(nodes)
            except NvctError as error:
                case.error = case.error or error
    return path and f"it would get {path}, which is one of them"


def _fits(name: str, patterns: Sequence[str], case: Case) -> bool | None:
    """Report whether all devices of a name match, None if only some do or if it is unknown."""
    if name in patterns or (not _is_by_bus(name) and _matches_any(name, patterns)):
        return True
    if case.plans is None or case.request is None:
        return None
    devices = case.plans.aliases(case.request, name)
    if devices is None:
        return None
    hits = {_is_among(names, patterns) for names in devices}
    return None if len(hits) > 1 else True in hits


def _fits_extra(name: str, patterns: Sequence[str]) -> bool | None:
    """Report whether a rule names an extra, None if only a wildcard matches its kind.

    The author of nvidia.com/* means GPUs, and seldom the right to change their MIG devices.
    """
    hits = [pattern for pattern in patterns if matches(name, pattern)]
    is_named = any("*" not in pattern.partition("=")[0] for pattern in hits)
    return True if is_named else None if hits else False


def _is_among(aliases: Sequence[str], patterns: Sequence[str]) -> bool:
    """Report whether one name of a device matches.

    A PCI bus id matches only a pattern that is equal to it: 0* means indices, not a PCI domain.
    """
    names = [alias for alias in aliases if not _is_by_bus(alias)]
    exactly = [alias for alias in aliases if alias in patterns]
    return bool(exactly) or any(_matches_any(name, patterns) for name in names or aliases)


def _is_by_bus(name: str) -> bool:
    return is_bus_id(name.partition("=")[2])


def _namespaces(patterns: Sequence[str], case: Case) -> Held:
    """Match the namespace; if the annotations name two, both must match.

    The engine's annotations are reliable only for containers in a cgroup of the kubelet.
    """
    annotations = case.annotations
    namespaces: list[str] = []
    for kind, key in ((CRIO_TYPE, CRIO_NAMESPACE), (CONTAINERD_TYPE, CONTAINERD_NAMESPACE)):
        name = annotations.get(key)
        if kind in annotations and isinstance(name, str) and name and name not in namespaces:
            namespaces.append(name)
    if not namespaces:
        if case.kubernetes:
            return None, "the engine does not name the pod's namespace"
        return False, "the container is in no pod"
    text = " and ".join([shown(name) for name in namespaces])
    hits = [_matches_any(name, patterns) for name in namespaces]
    if any(hits) and not case.is_kubelets:
        return None, f"{text}, but the container is in no cgroup of the kubelet"
    if all(hits) == any(hits):
        return all(hits), text
    return None, f"the annotations contradict each other: {text}"


def _annotations(rules: Mapping[str, Sequence[str]], case: Case) -> Held:
    for key, patterns in rules.items():
        value = case.annotations.get(key)
        if not isinstance(value, str):
            return False, f"there is no annotation {key}"
        if not _matches_any(value, patterns):
            return False, f"{key} is {shown(value)}"
    return True, ", ".join([f"{key}={shown(str(case.annotations[key]))}" for key in rules])


def _cgroups(patterns: Sequence[str], case: Case) -> Held:
    if case.origin is None:
        return None, "the cgroup is not known"
    path = case.origin.cgroup
    if not path:
        return False, "config.json names no cgroup"
    if "/" in path:
        from nvct.oci.bundle import clean

        path = clean(path)
    return _matches_any(path, patterns), shown(path)


def _users(ranges: Sequence[Sequence[int]], case: Case) -> Held:
    owner = case.origin.owner() if case.origin is not None else None
    if owner is None:
        return None, "the host user is not known"
    return any(low <= owner <= high for low, high in ranges), f"host user {owner}"


def _kubernetes(value: bool, case: Case) -> Held:  # noqa: FBT001  a condition's signature
    in_pod = case.is_kubelets
    if not in_pod and case.is_annotated:
        return None, "its annotations say that it is a pod's container, its cgroup does not"
    if not in_pod and case.origin is None:
        return None, "it is not known whether it is a pod's container"
    return in_pod == value, "it is a pod's container" if in_pod else "it is not a pod's container"


def _given_by_kubelet(folder: str, case: Case) -> Held:
    problem = case.ask_kubelet(folder)
    if problem:
        return False, problem
    if case.given_error is not None:
        return None, case.given_error.message
    if case.given is None:
        return False, f"the kubelet has given nothing that {case.source} could name"
    return case.is_given, f"the kubelet has given {shown(','.join(case.given.ids))}"


def _privileged(value: bool, case: Case) -> Held:  # noqa: FBT001  a condition's signature
    privileged = case.privileged
    return privileged == value, f"it has {'' if privileged else 'no '}CAP_SYS_ADMIN on the host"


def _more_gpus_than(limit: int, case: Case) -> Held:
    if case.request is None:
        return None, "the request cannot be understood"
    number = 0
    for name in case.names:
        kind, _, device = name.partition("=")
        if device != "all":
            number += 1
        elif case.plans is None:
            return None, f"it is not known how many devices {name} has"
        else:
            requested_kind = kind if name in case.request.ids else case.request.kind
            number += case.plans.count(case.request, requested_kind)
    if number <= limit:
        number = max(number, _gpus(case))
    return number > limit, f"{number} asked for"


def _gpus(case: Case) -> int:
    """Return the number of NVIDIA GPUs that a container would get, for a rule that refuses."""
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
    "given-by-kubelet": _given_by_kubelet,
    "kubernetes": _kubernetes,
    "namespaces": _namespaces,
    "privileged": _privileged,
    "users": _users,
    "more-gpus-than": _more_gpus_than,  # last: it may read a plan
}


def _matches_any(text: str, patterns: Sequence[str]) -> bool:
    return any(matches(text, pattern) for pattern in patterns)


def matches(text: str, pattern: str) -> bool:
    """Report whether a pattern, with * for any characters, matches a whole text."""
    prefix, *middle = pattern.split("*")
    if not middle:
        return text == pattern
    suffix = middle.pop()
    if not (text.startswith(prefix) and text.endswith(suffix)):
        return False
    if len(text) < len(prefix) + len(suffix):
        return False
    at, end = len(prefix), len(text) - len(suffix)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
