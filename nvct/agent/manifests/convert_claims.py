# SPDX-License-Identifier: Apache-2.0
"""Turns pods with limits of nvidia.com/gpu or nvidia.com/mig-* into pods with ResourceClaims.

HAMi's nvidia.com/gpumem and gpucores become a claim for a part of a GPU (docs/dra.md), and
conditions on labels of GPUs become conditions on the GPU itself. If a limit stays, a sentence says
why. Contract: pure functions of plain dicts; the given documents are not changed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from nvct.agent.manifests.convert import (
    MAJOR,
    MINOR,
    PREFIX,
    REQUIRED,
    PodSpec,
    containers,
    identity,
    objects,
    pod_specs,
    sequence,
    table,
    tables,
)
from nvct.errors import DocumentError

Object: TypeAlias = dict[str, Any]

GPU, MIG = f"{PREFIX}gpu", f"{PREFIX}mig-"
SHARE_MEMORY, SHARE_CORES = f"{PREFIX}gpumem", f"{PREFIX}gpucores"
"""HAMi's: the memory of each GPU in MiB, and its threads in percent."""
SHARE = "a claim for a part of a GPU needs a driver that offers parts: dra.shares of the chart"
PRODUCT, MEMORY_LABEL = f"{PREFIX}gpu.product", f"{PREFIX}gpu.memory"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory"
TEXTS = {
    PRODUCT: f"{ATTRIBUTES}.productName.replace(' ', '-')",
    f"{PREFIX}gpu.family": f"{ATTRIBUTES}.architecture.lowerAscii().replace(' ', '-')",
}
"""Labels, and the attributes that have the same text."""
NUMBERS = {
    MAJOR: f"{ATTRIBUTES}.cudaComputeCapability.major()",
    MINOR: f"{ATTRIBUTES}.cudaComputeCapability.minor()",
}
SIGNS = {"Gt": ">", "Lt": "<"}
OF_SHARING = re.compile("-SHARED$|-MIG-")
"""Parts of a product label that the model name of a GPU does not have."""
NOT_A_NAME = re.compile("[^a-z0-9-]+")
PROFILE = re.compile("[a-z0-9.+-]+")
NAME_LIMIT = 63
DIGITS = 8  # Of the hash in a name that was too long


class Wanted(NamedTuple):
    """What a container wants; `memory_mib` 0 is all memory of the GPU."""

    resource: str
    number: int
    memory_mib: int = 0
    cores: int = 0

    def __str__(self) -> str:
        """Return the limits that ask for this."""
        shares = ((SHARE_MEMORY, self.memory_mib), (SHARE_CORES, self.cores))
        given = ((self.resource, self.number), *(each for each in shares if each[1]))
        limits = ", ".join(f"{name}: {value}" for name, value in given)
        return f"the limit{'s' if self.memory_mib else ''} {limits}"


class Templates:
    """The ResourceClaimTemplates of one conversion; no two of them have the same name."""

    def __init__(self, documents: Iterable[object] = ()) -> None:
        self._specs: dict[tuple[str, str], object] = {}
        for each in itertools.chain.from_iterable(map(objects, documents)):
            if each.get("kind") == "ResourceClaimTemplate":
                _, name, namespace = identity(each)
                self._specs[namespace, name] = each.get("spec")

    def add(self, name: str, namespace: str, request: Object) -> tuple[str, list[Object]]:
        """Return the name of a request's template, and the template if it is new.

        The name gets a number if another request has it.
        """
        spec = {"spec": {"devices": {"requests": [request]}}}
        for number in itertools.count(1):
            unique = name if number == 1 else _name(name, str(number))
            known = self._specs.setdefault((namespace, unique), spec)
            if known is spec:
                metadata = {"name": unique, **({"namespace": namespace} if namespace else {})}
                return unique, [{**HEAD, "metadata": metadata, "spec": spec}]
            if known == spec:
                return unique, []
        raise AssertionError("the numbers end")


HEAD = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}


def convert(document: object, templates: Templates | None = None) -> tuple[list[Any], list[str]]:
    """Return new ResourceClaimTemplates with the converted manifest, and the changes.

    DocumentError if a limit is malformed. `templates`: those of other manifests that go to the
    same cluster.
    """
    converted = json.loads(json.dumps(document))
    known = Templates([document]) if templates is None else templates
    new: list[Any] = []
    changes: list[str] = []
    for each in objects(converted):
        found: list[str] = []
        has_claims = False
        for pod in pod_specs(each):
            templates_of_pod, of_pod = _convert_pod(pod, known)
            has_claims = has_claims or bool(templates_of_pod)
            new += templates_of_pod
            found += of_pod
        group = str(each.get("apiVersion") or "").partition("/")[0]
        if has_claims and "." in group:
            found.append(f"this kind is of {group}: check that it knows resourceClaims of pods")
        elsewhere = itertools.chain(found, _elsewhere(each))
        changes += [f"{identity(each)[0]}: {change}" for change in elsewhere]
    return [*new, converted], changes


def _convert_pod(pod: PodSpec, known: Templates) -> tuple[list[Any], list[str]]:
    """Change a pod spec; return its new templates and what was changed."""
    changes: list[str] = []
    wanted = [
        (kind, container, each)
        for kind in ("containers", "initContainers")
        for container in containers(pod.what, pod.spec, kind)
        for each in _devices(pod.what, container, changes)
    ]
    if not wanted:
        return [], changes
    has_mig = any(each.resource.startswith(MIG) for _, _, each in wanted)
    of_labels, of_conditions = _condition(pod, has_mig=has_mig)
    templates: list[Any] = []
    given: dict[Wanted, str] = {}
    claims = tables(pod.spec.get("resourceClaims") or [], f"{pod.what}: resourceClaims")
    pod.spec["resourceClaims"] = claims
    for kind, container, each in wanted:
        is_sidecar = container.get("restartPolicy") == "Always"
        claim = given.get(each)
        if kind == "initContainers" and claim and not is_sidecar:
            # It ends before the container that has this claim starts.
            change = f"has the claim {claim}, too,"
        else:
            name = _name(str(container.get("name") or ""), each.resource.removeprefix(PREFIX))
            claim = _unique(name, {str(known.get("name")) for known in claims})
            if not is_sidecar:
                given.setdefault(each, claim)
            request = _request(each, of_labels)
            template, new = known.add(_name(pod.name or "pod", name), pod.namespace, request)
            templates += new
            claims.append({"name": claim, "resourceClaimTemplateName": template})
            change = f"has a claim of template {template}"
        of_container = f"{pod.what}: claims of container {container.get('name')}"
        before = tables(container["resources"].get("claims") or [], of_container)
        container["resources"]["claims"] = [*before, {"name": claim}]
        changes.append(f"container {container.get('name')} {change} in place of {each}")
    if any(each.memory_mib for _, _, each in wanted):
        changes.append(SHARE)
    return templates, changes + of_conditions


def _devices(what: str, container: Object, changes: list[str]) -> list[Wanted]:
    """Remove the limits of GPUs and MIG devices from a container, and return them.

    If one of NVIDIA's limits stays, add the reason to `changes`.
    """
    name = container.get("name")
    resources = table(container.get("resources"), f"{what}: resources of container {name}")
    limits, requests = (
        table(resources.get(key), f"{what}: {key} of container {name}")
        for key in ("limits", "requests")
    )
    if share := _share(what, limits):
        for resource in (GPU, SHARE_MEMORY, SHARE_CORES):
            limits.pop(resource, None)
            requests.pop(resource, None)
        _drop_empty_of(resources)
        return [share]
    if stays := [key for key in limits if str(key).startswith(PREFIX) and not _is_device(key)]:
        changes += [f"container {name} keeps its limits: no claim replaces {', '.join(stays)}"]
        return []
    changes += [
        f"container {name} keeps the request {resource}: Kubernetes requires a limit with it"
        for resource in filter(_is_device, requests)
        if resource not in limits
    ]
    found = []
    for resource in filter(_is_device, list(limits)):
        count = _count(what, resource, limits[resource])
        if count > 0:
            del limits[resource]
            requests.pop(resource, None)
            found.append(Wanted(resource, count))
    _drop_empty_of(resources)
    return found


def _drop_empty_of(resources: Object) -> None:
    for key in ("limits", "requests"):
        if key in resources and not resources[key]:
            del resources[key]


def _share(what: str, limits: Object) -> Wanted | None:
    """Return the part of a GPU that HAMi's limits ask for, None if they ask for something else."""
    names = {str(name) for name in limits if str(name).startswith(PREFIX)}
    if SHARE_MEMORY not in names or names - {GPU, SHARE_MEMORY, SHARE_CORES}:
        return None
    count = _count(what, GPU, limits.get(GPU, 1))
    memory, cores = (_count(what, key, limits.get(key, 0)) for key in (SHARE_MEMORY, SHARE_CORES))
    is_part = count == 1 and memory > 0 and 0 <= cores <= 100
    return Wanted(GPU, count, memory, cores) if is_part else None


def _count(what: str, resource: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError as error:
        raise DocumentError(
            f"{what}: the limit {resource}: {value!r} is not a number",
            hint="render the template first: helm template, kustomize build, envsubst",
        ) from error


def _is_device(resource: object) -> bool:
    name = str(resource)
    is_mig = name.startswith(MIG) and PROFILE.fullmatch(name.removeprefix(MIG))
    return name == GPU or bool(is_mig)


def _elsewhere(document: Object) -> Iterator[str]:
    """Yield a sentence for each limit that does not belong to a container of a pod."""
    in_pods = [id(c) for pod in pod_specs(document) for c in containers(pod.what, pod.spec)]

    def walk(value: object, path: str) -> Iterator[str]:
        if id(value) in in_pods:
            return
        if isinstance(value, dict):
            limits = value.get("limits")
            for resource in filter(_is_device, limits if isinstance(limits, dict) else ()):
                yield f"the limit {resource} in {path} stays: no container of a pod has it"
        entries = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
        for key, each in entries:
            if isinstance(each, (dict, list)):
                yield from walk(each, f"{path}.{key}".strip("."))

    yield from walk(document, "")


def _unique(name: str, names: set[object]) -> str:
    """Return a name, with a number if it is in use."""
    numbered = (_name(name, str(number)) for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in names)


def _request(wanted: Wanted, of_labels: str) -> Object:
    resource = wanted.resource
    kind, conditions = "gpu", [of_labels]
    if resource.startswith(MIG):
        kind = "mig"
        # The name of a resource has a dot where the profile has a sign: 1g.10gb.me is 1g.10gb+me.
        profile = f"{ATTRIBUTES}.profile.replace('+', '.')"
        conditions.insert(0, f"{profile} == '{resource.removeprefix(MIG)}'")
    exactly: Object = {"deviceClassName": f"{kind}.nvidia.com"}
    if wanted.number > 1:
        exactly["count"] = wanted.number
    if wanted.memory_mib:
        cores = {"cores": str(wanted.cores)} if wanted.cores else {}
        exactly["capacity"] = {"requests": {"memory": f"{wanted.memory_mib}Mi", **cores}}
    if expression := " && ".join(filter(None, conditions)):
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": "gpu", "exactly": exactly}


def _condition(pod: PodSpec, *, has_mig: bool) -> tuple[str, list[str]]:
    """Remove a pod's conditions on labels of GPUs; return a CEL expression and the changes.

    `has_mig`: whether the pod wants a MIG device, whose memory is not in the label.
    """
    parts, changes, spec = [], [], pod.spec
    selector = table(spec.get("nodeSelector"), f"{pod.what}: nodeSelector")
    for key in list(selector):
        expression = (
            "" if has_mig and key == MEMORY_LABEL else condition(key, "In", [str(selector[key])])
        )
        if expression:
            parts.append(expression)
            changes.append(f"nodeSelector {key} becomes {expression}")
            del selector[key]
        elif key.startswith(GPU):
            changes.append(f"nodeSelector {key} stays: a claim can't have it as a condition")
    if "nodeSelector" in spec and not selector:
        del spec["nodeSelector"]
    node, terms = _node_affinity(pod)
    known = [_term(term, has_mig=has_mig) for term in terms]
    if known and all(known):
        whole = [f"({' && '.join(term or ())})" if len(terms) > 1 else " && ".join(term or ())
                 for term in known]  # fmt: skip
        parts.append(f"({' || '.join(whole)})" if len(whole) > 1 else whole[0])
        changes.append(f"the nodeAffinity becomes {parts[-1]}")
        del node[REQUIRED]
        _drop_empty(spec)
    elif any(_is_of_gpu(term) for term in terms):
        changes.append("the nodeAffinity stays: a claim can't have all of its conditions")
    return " && ".join(parts), changes


def _node_affinity(pod: PodSpec) -> tuple[Object, list[Object]]:
    """Return a pod's node affinity and its terms; DocumentError if an expression is malformed."""
    what = f"{pod.what}: nodeAffinity"
    node = table(table(pod.spec.get("affinity"), what).get("nodeAffinity"), what)
    terms = tables(table(node.get(REQUIRED), what).get("nodeSelectorTerms") or [], what)
    for term in terms:
        for expression in tables(term.get("matchExpressions") or [], what):
            sequence(expression.get("values"), f"{what}: values")
    return node, terms


def _term(term: Object, *, has_mig: bool) -> list[str] | None:
    """Return the conditions of a term; None if a claim can't have one of them."""
    found = []
    for entry in term.get("matchExpressions") or ():
        key, values = str(entry.get("key")), [str(value) for value in entry.get("values") or ()]
        is_other = has_mig and key == MEMORY_LABEL
        found.append("" if is_other else condition(key, str(entry.get("operator")), values))
    return found if found and all(found) and "matchFields" not in term else None


def _is_of_gpu(term: Object) -> bool:
    entries = term.get("matchExpressions") or ()
    return any(str(entry.get("key", "")).startswith(GPU) for entry in entries)


def condition(key: str, operator: str, values: list[str]) -> str:
    """Return a condition on a label as a CEL expression, "" if no attribute replaces the label."""
    quoted = [value.replace("\\", "").replace("'", "") for value in values]
    if key == PRODUCT and any(map(OF_SHARING.search, values)):
        return ""
    if key in TEXTS and operator in ("In", "NotIn"):
        listed = f"{TEXTS[key]} in {quoted!r}"
        return listed if operator == "In" else f"!({listed})"
    if key == f"{PREFIX}gpu.ecc" and operator == "In" and values in (["true"], ["false"]):
        return f"{ATTRIBUTES}.?ecc.orValue(false) == {values[0]}"
    if key not in NUMBERS and key != MEMORY_LABEL:
        return ""
    if not values or not all(value.isdecimal() for value in values):
        return ""
    if operator in SIGNS:
        return _compared(key, SIGNS[operator], values[0])
    if operator == "In":
        each = [_compared(key, "==", value) for value in values]
        return each[0] if len(each) == 1 else f"({' || '.join(each)})"
    return ""


def _compared(key: str, sign: str, value: str) -> str:
    if key in NUMBERS:
        return f"{NUMBERS[key]} {sign} {value}"
    return f"{MEMORY}.compareTo(quantity('{value}Mi')) {sign} 0"


def _drop_empty(spec: Object) -> None:
    affinity = spec["affinity"]
    if not affinity["nodeAffinity"]:
        del affinity["nodeAffinity"]
    if not affinity:
        del spec["affinity"]


def _name(*parts: str) -> str:
    """Join parts to a name that Kubernetes accepts; if it is too long, a hash replaces its end."""
    whole = "-".join(filter(None, parts))
    name = NOT_A_NAME.sub("-", whole.lower()).strip("-")
    if len(name) <= NAME_LIMIT:
        return name or "gpu"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGITS]
    return f"{name[: NAME_LIMIT - DIGITS - 1].rstrip('-')}-{digest}"
