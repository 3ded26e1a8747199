# SPDX-License-Identifier: Apache-2.0
"""Turns pods of NVIDIA's Kubernetes 1.9 into pods of today, and explains each change.

That fork of 2018 chose a GPU by its attributes: `extendedResources` of a pod, each with a limit
and an `affinity.required`, and `extendedResourceRequests` of its containers. Today a container has
the limit, and the pod chooses a node by labels (docs/labels.md).

Contract: pure functions of plain dicts; the given documents are not changed.

A manifest may be a list, or of a kind of other software. A Deployment has one pod template, an
MPIJob one for each role, an InferenceService the fields of a pod beside its own. So every object
with a list of containers counts as the specification of a pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, TypeAlias

from nvct.errors import DocumentError

Object: TypeAlias = dict[str, Any]
Term: TypeAlias = list[Object]  # Match expressions that must all hold; of several terms one must

PREFIX = "nvidia.com/"
RESOURCES, REQUESTS = "extendedResources", "extendedResourceRequests"
LABELS = {
    "gpu-memory": "gpu.memory",
    "gpu-ecc": "gpu.ecc",
    "gpu-family": "gpu.family",
    "gpu-product": "gpu.product",
}
"""Attributes of the fork, and today's labels; both without their prefix."""
CAPABILITY = ("gpu-compute-capability", "compute-capability", "gpu.compute-capability")
MAJOR, MINOR = f"{PREFIX}gpu.compute.major", f"{PREFIX}gpu.compute.minor"
YES = {"true": "true", "yes": "true", "on": "true", "enabled": "true", "1": "true"}
NO = {"false": "false", "no": "false", "off": "false", "disabled": "false", "0": "false"}
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PER_NODE = (
    "labels describe a node: on a node with several models the pod may get another GPU than the "
    "one that the condition is about"
)


def convert(document: object) -> tuple[object, list[str]]:
    """Return a manifest for today's Kubernetes, and a sentence for each change.

    A manifest without these fields is returned as it is. Pods in other objects, such as a
    Deployment's, and in lists are converted, too. DocumentError if a field has no counterpart
    today, or is malformed.
    """
    try:  # not copy.deepcopy, whose copies would still share what YAML's aliases share
        converted = json.loads(json.dumps(document))
    except (ValueError, RecursionError) as error:
        raise DocumentError("the manifest refers to itself") from error
    changes: list[str] = []
    for pod in pod_specs(converted):
        changes += [f"{pod.what}: {change}" for change in _convert_pod(pod.what, pod.spec)]
    return converted, changes


def _convert_pod(what: str, spec: Object) -> list[str]:
    """Change a pod spec; return what was changed."""
    resources = {}
    for entry in tables(spec.pop(RESOURCES, None) or [], f"{what}: {RESOURCES}"):
        if not isinstance(entry.get("name"), str):
            raise DocumentError(f"{what}: an entry of {RESOURCES} has no name")
        resources[entry["name"]] = entry
    changes, users = [], dict[str, str]()
    for container in containers(what, spec):
        for name in sequence(container.pop(REQUESTS, None), f"{what}: {REQUESTS}"):
            if not isinstance(name, str) or name not in resources:
                raise DocumentError(f"{what}: {REQUESTS} names {name!r}, which {RESOURCES} lacks")
            if name in users:
                raise DocumentError(
                    f"{what}: containers {users[name]} and {container.get('name')} share {name!r}",
                    hint="containers share a GPU by a ResourceClaim; a limit is for one container",
                )
            users[name] = str(container.get("name"))
            changes += _give(what, container, resources[name])
    for name, entry in resources.items():
        if name not in users:
            changes.append(f"{RESOURCES} {name!r} is removed: no container requests it")
            continue
        changes += _choose_node(f"{what}: {RESOURCES} {name!r}", spec, entry)
    return changes


def _give(what: str, container: Object, entry: Object) -> list[str]:
    """Give a container the limits of an extended resource."""
    of_entry = entry.get("resources") or {}
    if not isinstance(of_entry, dict) or not isinstance(
        wanted := of_entry.get("limits") or of_entry.get("requests"), dict
    ):
        raise DocumentError(f"{what}: {RESOURCES} {entry['name']!r} has no limits")
    resources = table(container.get("resources"), f"{what}: resources of a container")
    limits = table(resources.get("limits"), f"{what}: limits of a container")
    container["resources"] = {**resources, "limits": limits}
    changes = []
    for resource, count in wanted.items():
        try:
            limits[resource] = int(limits.get(resource, 0)) + int(count)
        except (OverflowError, TypeError, ValueError) as error:
            text = f"{what}: the limit {resource}: {count!r} is not a number"
            raise DocumentError(text) from error
        changes.append(
            f"container {container.get('name')} has the limit {resource}: {limits[resource]}, in "
            f"place of {REQUESTS} {entry['name']!r}"
        )
    return changes


def _choose_node(what: str, spec: Object, entry: Object) -> list[str]:
    """Turn the affinity of an extended resource into a node affinity of the pod."""
    affinity = entry.get("affinity") or {}
    if not isinstance(affinity, dict) or affinity.keys() - {"required"}:
        raise DocumentError(f"{what}: only `required` of its affinity has a counterpart")
    choices: list[list[Term]] = []
    changes = []
    for condition in tables(affinity.get("required") or [], f"{what}: affinity.required"):
        terms = _terms(what, condition)
        choices.append(terms)
        words = (" and ".join(map(_text, term)) for term in terms)
        changes.append(f"{_text(condition)} becomes {' or '.join(words)}")
    if not choices:
        return []
    of_pod = spec["affinity"] = table(spec.get("affinity"), f"{what}: affinity of the pod")
    node = of_pod["nodeAffinity"] = table(of_pod.get("nodeAffinity"), f"{what}: nodeAffinity")
    required = table(node.get(REQUIRED), f"{what}: {REQUIRED}")
    before = tables(required.get("nodeSelectorTerms") or [{}], f"{what}: nodeSelectorTerms")
    node[REQUIRED] = {
        "nodeSelectorTerms": [
            {
                **term,
                "matchExpressions": [*sequence(term.get("matchExpressions"), what), *chain(*more)],
            }
            for term in before
            for more in product(*choices)
        ]
    }
    return [*changes, PER_NODE]


def _terms(what: str, condition: Object) -> list[Term]:
    """Return the conditions on labels that replace a condition on an attribute."""
    key, operator = str(condition.get("key", "")), condition.get("operator")
    values = condition.get("values") or []
    if operator not in OPERATORS or not isinstance(values, list):
        raise DocumentError(
            f"{what}: {_text(condition)} is not a condition",
            hint=f"operators: {', '.join(OPERATORS)}",
        )
    texts = [_string(value) for value in values]
    name = key.removeprefix(PREFIX)
    if name in CAPABILITY:
        return _by_capability(what, condition, operator, texts)
    if name == "gpu-ecc":
        texts = [{**YES, **NO}.get(text.lower(), text) for text in texts]
    label = LABELS.get(name, name if name.startswith("gpu.") else "")
    if not label:
        known = ", ".join(f"{PREFIX}{each}" for each in (*LABELS, CAPABILITY[0]))
        raise DocumentError(f"{what}: no label replaces {key}", hint=f"known are {known}")
    if operator in ("Gt", "Lt") and not (len(texts) == 1 and texts[0].isdecimal()):
        raise DocumentError(f"{what}: {_text(condition)} needs one whole number")
    return [[_expression(f"{PREFIX}{label}", operator, texts)]]


def _by_capability(what: str, condition: Object, operator: str, values: list[str]) -> list[Term]:
    """Return conditions on the two labels of the compute capability, which are whole numbers."""
    if operator in ("Exists", "DoesNotExist"):
        return [[_expression(MAJOR, operator, [])]]
    pairs = [value.partition(".")[::2] for value in values]
    pairs = [(major, minor or "0") for major, minor in pairs]
    is_wrong = not pairs or any(not part.isdecimal() for pair in pairs for part in pair)
    if is_wrong or operator == "NotIn" or (operator != "In" and len(pairs) != 1):
        raise DocumentError(
            f"{what}: {_text(condition)} cannot be expressed by labels",
            hint="use In, or Gt or Lt with one version such as 7.0",
        )
    if operator == "In":
        return [
            [_expression(MAJOR, "In", [major]), _expression(MINOR, "In", [minor])]
            for major, minor in pairs
        ]
    ((major, minor),) = pairs
    same = [_expression(MAJOR, "In", [major]), _expression(MINOR, operator, [minor])]
    return [[_expression(MAJOR, operator, [major])], same]


def _expression(key: str, operator: str, values: list[str]) -> Object:
    return {"key": key, "operator": operator, **({"values": values} if values else {})}


def _string(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(condition: Object) -> str:
    """Return a condition as words of a sentence."""
    values = condition.get("values")
    shown = ", ".join(map(_string, values)) if isinstance(values, list) else ""
    return f"{condition.get('key')} {condition.get('operator')} {shown}".rstrip()


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The specification of a pod in an object."""

    what: str  # kind and name of the object, for sentences
    name: str
    namespace: str
    spec: Object  # the fields of the pod; a part of the manifest, to be changed in place


def objects(document: object) -> Iterator[Object]:
    """Yield the objects of a manifest: itself, or the items of a list."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if not isinstance(items, list):
        yield document
    for item in items if isinstance(items, list) else ():
        yield from objects(item)


def pod_specs(document: object) -> Iterator[PodSpec]:
    """Yield the pod specs in a manifest."""
    for each in objects(document):
        what, name, namespace = identity(each)
        for spec in _specs(each):
            yield PodSpec(what, name, namespace, spec)


def identity(document: Object) -> tuple[str, str, str]:
    """Return kind and name of an object for sentences, its name, and its namespace."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-"))
    what = f"{document.get('kind') or 'object'} {name}".rstrip()
    return what, name, str(metadata.get("namespace") or "")


def containers(what: str, spec: Object, *kinds: str) -> list[Object]:
    """Return the containers of a pod, by default the init containers and then the others."""
    return [
        container
        for kind in kinds or ("initContainers", "containers")
        for container in tables(spec.get(kind) or [], f"{what}: {kind}")
    ]


def tables(value: object, what: str) -> list[Object]:
    """Return a list of objects; DocumentError for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DocumentError(f"{what} is not a list of objects")
    return value


def sequence(value: object, what: str) -> list[object]:
    """Return a list, an empty one for None; DocumentError for anything else."""
    if value is not None and not isinstance(value, list):
        raise DocumentError(f"{what} is not a list")
    return value or []


def table(value: object, what: str) -> Object:
    """Return an object, an empty one for None; DocumentError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DocumentError(f"{what} is not an object")
    return value


def _specs(value: object) -> Iterator[Object]:
    if isinstance(value, list):
        for each in value:
            yield from _specs(each)
    elif isinstance(value, dict):
        found = value.get("containers")
        if isinstance(found, list) and any(isinstance(each, dict) for each in found):
            yield value
            return
        for each in value.values():
            yield from _specs(each)
