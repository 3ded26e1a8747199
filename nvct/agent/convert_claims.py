# SPDX-License-Identifier: Apache-2.0
"""Turns pods with limits of nvidia.com/gpu or nvidia.com/mig-* into pods with ResourceClaims.

Conditions on labels of GPUs become conditions on the GPU itself. Contract: pure functions of plain
dicts; the given documents are not changed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from nvct.agent.convert import MAJOR, MINOR, PREFIX, REQUIRED, pod_specs
from nvct.errors import DocumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Object: TypeAlias = dict[str, Any]

GPU, MIG = f"{PREFIX}gpu", f"{PREFIX}mig-"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory"
TEXTS = {
    f"{PREFIX}gpu.product": f"{ATTRIBUTES}.productName.replace(' ', '-')",
    f"{PREFIX}gpu.family": f"{ATTRIBUTES}.architecture.lowerAscii().replace(' ', '-')",
}
"""Labels and the attributes that have the same text."""
NUMBERS = {
    MAJOR: f"{ATTRIBUTES}.cudaComputeCapability.major()",
    MINOR: f"{ATTRIBUTES}.cudaComputeCapability.minor()",
}
SIGNS = {"Gt": ">", "Lt": "<"}
NOT_A_NAME = re.compile("[^a-z0-9-]+")
NAME_LIMIT = 63


def convert(document: object) -> tuple[list[Any], list[str]]:
    """Return the ResourceClaimTemplates of a manifest's pods and the manifest, and the changes.

    Raises:
        DocumentError: a limit is malformed.
    """
    converted = json.loads(json.dumps(document))
    templates: list[Any] = []
    changes: list[str] = []
    for what, spec in pod_specs(converted):
        namespace = _namespace(converted)
        made, of_pod = _convert_pod(what, spec, namespace)
        templates += made
        changes += [f"{what}: {change}" for change in of_pod]
    return [*templates, converted], changes


def _convert_pod(what: str, spec: Object, namespace: str) -> tuple[list[Any], list[str]]:
    wanted = [
        (kind, container, resource, count)
        for kind in ("containers", "initContainers")
        for container in spec.get(kind) or ()
        for resource, count in _devices(what, container)
    ]
    if not wanted:
        return [], []
    of_labels, changes = _condition(spec)
    templates: list[Any] = []
    given: dict[tuple[str, int], str] = {}
    for kind, container, resource, count in wanted:
        is_sidecar = container.get("restartPolicy") == "Always"
        claim = given.get((resource, count))
        if kind == "initContainers" and claim and not is_sidecar:
            # It ends before the container whose claim this is starts.
            container["resources"].setdefault("claims", []).append({"name": claim})
            changes.append(
                f"container {container.get('name')} has the claim {claim}, too, in place of the "
                f"limit {resource}: {count}"
            )
            continue
        name = _name(container.get("name", ""), resource.removeprefix(PREFIX))
        if not is_sidecar:
            given.setdefault((resource, count), name)
        template = _name(what.partition(" ")[2] or "pod", name)
        templates.append(_template(template, namespace, _request(resource, count, of_labels)))
        spec.setdefault("resourceClaims", []).append(
            {"name": name, "resourceClaimTemplateName": template}
        )
        container["resources"].setdefault("claims", []).append({"name": name})
        changes.append(
            f"container {container.get('name')} has a claim of template {template} in place of "
            f"the limit {resource}: {count}"
        )
    return templates, changes


def _devices(what: str, container: Object) -> list[tuple[str, int]]:
    """Remove the limits of GPUs and MIG devices from a container, and return them."""
    resources = container.get("resources") or {}
    limits, found = resources.get("limits") or {}, []
    for resource in list(limits):
        if resource == GPU or resource.startswith(MIG):
            try:
                count = int(limits.pop(resource))
            except (TypeError, ValueError) as error:
                raise DocumentError(f"{what}: the limit of {resource} is no number") from error
            (resources.get("requests") or {}).pop(resource, None)
            if count > 0:
                found.append((resource, count))
    for key in ("limits", "requests"):
        if key in resources and not resources[key]:
            del resources[key]
    return found


def _request(resource: str, count: int, of_labels: str) -> Object:
    kind, conditions = "gpu", [of_labels]
    if resource.startswith(MIG):
        kind = "mig"
        # The name of a resource has a dot where the profile has a sign: 1g.10gb.me is 1g.10gb+me.
        profile = f"{ATTRIBUTES}.profile.replace('+', '.')"
        conditions.insert(0, f"{profile} == '{resource.removeprefix(MIG)}'")
    exactly: Object = {"deviceClassName": f"{kind}.nvidia.com"}
    if count > 1:
        exactly["count"] = count
    if expression := " && ".join(filter(None, conditions)):
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": "gpu", "exactly": exactly}


def _template(name: str, namespace: str, request: Object) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _condition(spec: Object) -> tuple[str, list[str]]:
    """Remove a pod's conditions on labels of GPUs; return them as one of CEL, and the changes."""
    parts, changes = [], []
    selector = spec.get("nodeSelector") or {}
    for key in list(selector):
        expression = condition(key, "In", [str(selector[key])])
        if expression:
            parts.append(expression)
            changes.append(f"nodeSelector {key} becomes {expression}")
            del selector[key]
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
    known = [_term(term) for term in terms]
    if known and all(known):
        whole = [f"({' && '.join(term or ())})" if len(terms) > 1 else " && ".join(term or ())
                 for term in known]  # fmt: skip
        parts.append(f"({' || '.join(whole)})" if len(whole) > 1 else whole[0])
        changes.append(f"the nodeAffinity becomes {parts[-1]}")
        del node[REQUIRED]
        _drop_empty(spec)
    elif any(_is_of_gpu(term) for term in terms):
        changes.append("the nodeAffinity stays: some of its conditions are not of a GPU")
    return " && ".join(parts), changes


def _term(term: Object) -> list[str] | None:
    """Return the conditions of a term; None if one of them is not of a GPU."""
    found = []
    for entry in term.get("matchExpressions") or ():
        values = [str(value) for value in entry.get("values") or ()]
        found.append(condition(str(entry.get("key")), str(entry.get("operator")), values))
    return found if found and all(found) and "matchFields" not in term else None


def _is_of_gpu(term: Object) -> bool:
    entries = term.get("matchExpressions") or ()
    return any(str(entry.get("key", "")).startswith(GPU) for entry in entries)


def condition(key: str, operator: str, values: list[str]) -> str:
    """Return a condition on a label as one of CEL, "" if there is no such attribute."""
    quoted = [value.replace("\\", "").replace("'", "") for value in values]
    if key in TEXTS and operator in ("In", "NotIn"):
        listed = f"{TEXTS[key]} in {quoted!r}"
        return listed if operator == "In" else f"!({listed})"
    if key == f"{PREFIX}gpu.ecc" and operator == "In" and values in (["true"], ["false"]):
        return f"{ATTRIBUTES}.?ecc.orValue(false) == {values[0]}"
    if key not in NUMBERS and key != f"{PREFIX}gpu.memory":
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


def _namespace(document: object) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return str(metadata.get("namespace", "")) if isinstance(metadata, dict) else ""


def _name(*parts: str) -> str:
    """Return a name as Kubernetes takes it, of several parts."""
    name = NOT_A_NAME.sub("-", "-".join(filter(None, parts)).lower()).strip("-")
    return name[:NAME_LIMIT].rstrip("-") or "gpu"
