# SPDX-License-Identifier: Apache-2.0
"""Validates a document as a CDI spec: its fields, and the rules of engines.

Cold side. Checks what the CDI library checks when it loads a file, and two things more:
annotations, which its v1.1.0 never checks, and a vendor of one letter, which crashes it. The JSON
schema in `schema` is stricter and for authors of specs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from nvct.cdi import names, versions
from nvct.cdi.read import spec_fields
from nvct.cdi.read.spec_fields import member, owner, shown
from nvct.cdi.types import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Spec
from nvct.errors import CdiSpecError, RequestError

NODE_TYPES = ("", "b", "c", "u", "p")
HOOK_NAMES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
CLOS_ID_LIMIT = 4096
NAME_LIMIT = 63
DOMAIN_LIMIT = 253
ANNOTATIONS_LIMIT = 256 << 10  # Kubernetes: of all keys and values of one object

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)


def validate(document: object, *, source: str) -> Spec:
    """Return a document as a spec, with exact names and no nulls; CdiSpecError with a position."""
    at = f"{source}:"
    if document is None:
        raise CdiSpecError(f"{source} is empty", hint="remove it or write a CDI spec")
    spec: Spec = spec_fields.read_spec(document, at)
    _check_version(spec, at)
    _apply_rule(names.parse_kind, spec["kind"], member(at, "kind"))
    _check_annotations(spec, at)
    _check_devices(spec, at)
    _check_edits(spec.get("containerEdits", {}), member(at, "containerEdits"))
    version, reason = versions.minimum(spec)
    if versions.is_older(spec["cdiVersion"], version):
        raise CdiSpecError(
            f"{at} cdiVersion is {spec['cdiVersion']}, but {reason} needs {version}",
            hint=f"set cdiVersion to {version}",
        )
    return spec


def _check_version(spec: Spec, at: str) -> None:
    version = spec["cdiVersion"]
    if not versions.is_known(version):
        raise CdiSpecError(
            f"{at} cdiVersion {shown(version)} is unknown",
            hint=f"known are {versions.LOWEST} to {versions.LATEST}",
        )


def _check_devices(spec: Spec, at: str) -> None:
    if not spec.get("devices"):
        raise CdiSpecError(f"{owner(at)} has no devices", hint="a spec defines at least one")
    seen: set[str] = set()
    for index, device in enumerate(spec["devices"]):
        position = f"{member(at, 'devices')}[{index}]"
        name = device["name"]
        _apply_rule(names.check_device_name, name, member(position, "name"))
        if name in seen:
            raise CdiSpecError(f"{position} is the second device named {shown(name)}")
        seen.add(name)
        _check_device(device, position)


def _check_device(device: Device, at: str) -> None:
    _check_annotations(device, at)
    edits = device.get("containerEdits")
    # An intelRdt object counts even if it is empty.
    if not edits or ("intelRdt" not in edits and not any(edits.values())):
        raise CdiSpecError(f"{at} has no container edits", hint="give it a node, mount or env")
    _check_edits(edits, member(at, "containerEdits"))


def _check_edits(edits: ContainerEdits, at: str) -> None:
    _check_env(edits.get("env", []), member(at, "env"))
    for index, node in enumerate(edits.get("deviceNodes", ())):
        _check_node(node, f"{at}.deviceNodes[{index}]")
    for index, hook in enumerate(edits.get("hooks", ())):
        _check_hook(hook, f"{at}.hooks[{index}]")
    _check_net_devices(edits, member(at, "netDevices"))
    if "intelRdt" in edits:
        _check_rdt(edits["intelRdt"], member(at, "intelRdt"))


def _check_env(env: list[str], at: str) -> None:
    for index, entry in enumerate(env):
        if entry.find("=") < 1:
            raise CdiSpecError(
                f"{at}[{index}] is {shown(entry)}, not a variable", hint="write NAME=VALUE"
            )


def _check_node(node: DeviceNode, at: str) -> None:
    kind = node.get("type", "")
    if kind not in NODE_TYPES:
        raise CdiSpecError(
            f"{at}.type is {shown(kind)}, not a node type", hint="b, c, u or p, or leave it out"
        )
    permissions = node.get("permissions", "")
    if permissions != "none" and permissions.strip("rwm"):
        raise CdiSpecError(
            f"{at}.permissions is {shown(permissions)}", hint="some of r, w, m, or none"
        )


def _check_hook(hook: Hook, at: str) -> None:
    name = hook["hookName"]
    if name not in HOOK_NAMES:
        raise CdiSpecError(
            f"{at}.hookName is {shown(name)}, not an OCI hook",
            hint="one of " + ", ".join(HOOK_NAMES),
        )
    _check_env(hook.get("env", []), member(at, "env"))


def _check_net_devices(edits: ContainerEdits, at: str) -> None:
    hosts: set[str] = set()
    inside: set[str] = set()
    for index, device in enumerate(edits.get("netDevices", ())):
        position = f"{at}[{index}]"
        for key, name, seen in (
            ("hostInterfaceName", device["hostInterfaceName"], hosts),
            ("name", device["name"], inside),
        ):
            if name in seen:
                raise CdiSpecError(f"{position}.{key} is {shown(name)}, a duplicate")
            seen.add(name)


def _check_rdt(rdt: IntelRdt, at: str) -> None:
    """Check that a class of service can be the name of a directory in resctrl."""
    name = rdt.get("closID", "")
    if len(name.encode()) >= CLOS_ID_LIMIT or name in {".", ".."}:
        raise CdiSpecError(f"{at}.closID {shown(name)} cannot name a directory")
    if name != "/" and ("/" in name or "\n" in name):  # "/" alone is resctrl's own root
        raise CdiSpecError(f"{at}.closID {shown(name)} cannot name a directory")


def _check_annotations(holder: Spec | Device, at: str) -> None:
    _apply_rule(check_annotations, holder.get("annotations", {}), member(at, "annotations"))


def check_annotations(annotations: Mapping[str, str]) -> None:
    """Check annotations by the rules of Kubernetes; RequestError for a bad key or size."""
    total = 0
    for full_key, text in annotations.items():
        domain, slash, name = full_key.rpartition("/")
        key = f"annotation key {shown(full_key)}"
        if slash and (len(domain) > DOMAIN_LIMIT or not _DOMAIN.fullmatch(domain.lower())):
            raise RequestError(f"{key} does not begin with a domain name")
        if len(name) > NAME_LIMIT:
            raise RequestError(
                f"{key} has a name of {len(name)} characters", hint=f"{NAME_LIMIT} are allowed"
            )
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"{key} is malformed", hint="letters, digits, and _ . - between them"
            )
        total += len(full_key.encode()) + len(text.encode())
    if total > ANNOTATIONS_LIMIT:
        raise RequestError(f"annotations have {total} bytes, more than {ANNOTATIONS_LIMIT}")


def _apply_rule(check: Callable[..., object], value: object, at: str) -> None:
    """Apply a rule for requests; report a violation with the position in the file."""
    try:
        check(value)
    except RequestError as error:
        raise CdiSpecError(f"{at}: {error.message}", hint=error.hint) from error
