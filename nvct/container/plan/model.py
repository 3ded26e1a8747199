# SPDX-License-Identifier: Apache-2.0
"""Plans: CDI specs compiled into OCI fragments, and the lookup of device names.

Hot. A plan is a JSON object, `Plan`. Its fragments are JSON text that is pasted into config.json.
`collect` merges the work of the selected edits and parts into edits with a member "hook", which
names the program that does the work, unless the shim does it. The plan "properties" has no devices
but "gpus": {name: {"brand": ..., "arch": ...}}.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.plan import fingerprints
from nvct.errors import CdiSpecError, HostError, StaleSpecError, UnknownDeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class DeviceNode(TypedDict):
        """A device node."""

        path: str  # in the container
        host: str
        node: str  # text for linux.devices
        rule: str  # text for linux.resources.devices

    class Compat(TypedDict, total=False):
        """Input for the choice of CUDA compatibility libraries; {}: the image's are not used."""

        driver: str  # version of the host's driver
        cuda: str  # or of the CUDA that it supports
        folder: str  # of the libraries in images, if it is not the default

    class Work(TypedDict):
        """Work in a container's root besides mounts."""

        links: list[list[str]]  # [target, path]
        folders: list[str]  # for the dynamic linker
        compat: Compat
        params: bool  # whether the driver's params are masked
        profile: bool  # whether an application profile for EGL is written

    class View(TypedDict):
        """A farm view that a CDI spec mounts, for the hook."""

        mount_point: str
        libraries: list[str]  # for the dynamic linker; relative to the view
        links: list[str]  # other names that programs look for; relative to the view
        files: list[list[str]]  # [path in the view, path in the container]
        folder: str  # of links, for images without a library folder

    class Program(TypedDict):
        """The hook program."""

        path: str  # on the host
        args: list[str]  # without the options
        env: list[str]

    class Hook(TypedDict):
        """Work, and the program that does it as createContainer hook."""

        program: Program
        work: Work

    class Farm(TypedDict):
        """The table of a farm view, made by `nvct.farm.table`."""

        view: str
        why: str
        version: str
        facts: list[fingerprints.Fingerprint]
        cache: dict[str, list[list[str]]]
        cache32: dict[str, list[list[str]]]
        links: dict[str, list[list[str]]]
        links32: dict[str, list[list[str]]]
        mounts: dict[str, list[list[str]]]
        env: dict[str, list[str]]
        params: bool
        staged: bool

    class FarmEdits(TypedDict):
        """A view of the farm that can replace the common edits of a spec."""

        table: Farm
        capabilities: list[str] | None
        common: list[Edits]

    class MoreEdits(TypedDict, total=False):
        """Members that only edits of nvct's own plan have."""

        parts: dict[str, Edits]  # for containers with a driver capability, by its name
        work: Work
        cache: list[list[str]]  # [machine, name, path]: entries of ld.so.cache for the mounts
        hook: Hook  # made by `collect`, like `farm`
        farm: FarmEdits

    class Edits(MoreEdits):
        """Compiled container edits."""

        env: list[str]
        nodes: list[DeviceNode]
        mounts: list[list[str]]  # [destination, text]
        hooks: dict[str, list[str]]  # texts by hook point
        gids: list[int]
        net: dict[str, str]  # texts by host interface
        rdt: str  # text

    class Spec(TypedDict):
        """One compiled CDI spec."""

        path: str
        facts: list[fingerprints.Fingerprint]
        edits: Edits
        refuse: str  # the error message of each request, "" if the spec is usable

    class Device(TypedDict):
        """The device of one name; the names of a device share their edits."""

        spec: int  # index
        edits: int  # index
        facts: list[fingerprints.Fingerprint]
        refuse: str

    BasePlan = TypedDict(
        "BasePlan",
        {
            "nvct-plan": int,  # FORMAT
            "config": str,  # path of the config.toml that it was compiled with
            "facts": list[fingerprints.Fingerprint],  # of the inputs of the whole plan
            "specs": list[Spec],
            "edits": list[Edits],
            "devices": dict[str, Device],  # by vendor/class=name
            "kinds": list[str],  # vendor/class
            "problems": list[str],  # sentences about spec files that could not be used
            "conflicts": dict[str, list[str]],  # files that define the same name
            "host": dict[str, str],  # the properties that NVIDIA_REQUIRE_* tests
        },
    )

    class Plan(BasePlan, total=False):
        """A plan; nvct's own plan has a hook and the table of a farm view."""

        hook: Program
        farm: Farm
        made: int  # the time of compilation, in ns since 1970
        parents: dict[str, list[int]]  # [major, minor] of GPUs in MIG mode, not in `devices`


FORMAT = 6
NOT_BY_DEFAULT = "compat32"
"""The capability that must be requested by name: the incumbent's CDI modes never deliver it."""
KEY = "nvct-plan"


def is_current(plan: object) -> bool:
    """Report whether this is a plan of this version whose fingerprints all match."""
    if not isinstance(plan, dict) or plan.get(KEY) != FORMAT:
        return False
    return _match(plan) and (plan.get("farm") is None or _match(plan["farm"]))


def fingerprint(plan: Plan) -> str:
    """Return when a plan was compiled, in ns since 1970, and for which driver: 0 if unknown."""
    return f"{plan.get('made', 0)}/{plan.get('host', {}).get('driver') or 0}"


def _match(part: object) -> bool:
    facts = part.get("facts") if isinstance(part, dict) else None
    return isinstance(facts, list) and fingerprints.broken(facts) is None


class StalePlanError(HostError):
    """A plan no longer describes the host: it must be compiled again.

    If the plan has just been compiled, the user gets this error.
    """


def collect(
    plan: Plan, names: list[str], capabilities: list[str] | None = None, *, compat: bool = True
) -> list[Edits]:
    """Return the edits for full device names, each device's once, after their specs' common edits.

    `capabilities` are the driver's, None for all except compat32. With `compat`, CUDA
    compatibility libraries of the image may replace the driver's, in nvct's own plan only. Raises
    UnknownDeviceError if a name is not in the plan, StaleSpecError if the spec of a device no
    longer describes the host, StalePlanError if a fingerprint of a device does not match.
    """
    check_known(plan, names)
    selected: list[Edits] = []
    spec_indexes: list[int] = []
    edit_indexes: list[int] = []
    for name in names:
        device = plan["devices"][name]
        spec = plan["specs"][device["spec"]]
        _check_fingerprints(name, spec["facts"] + device["facts"])
        refuse = spec["refuse"] or device["refuse"]
        if refuse:
            raise _stale(name, spec["path"], refuse)
        if device["spec"] not in spec_indexes:
            spec_indexes.append(device["spec"])
            selected += _common(plan, spec, capabilities, compat=compat)
        if device["edits"] not in edit_indexes:
            edit_indexes.append(device["edits"])
            selected += _select(plan, plan["edits"][device["edits"]], capabilities, compat=compat)
    return selected


def check_known(plan: Plan, names: list[str]) -> None:
    """Raise UnknownDeviceError for a name that a plan does not have."""
    missing = [name for name in names if name not in plan["devices"]]
    if missing:
        raise _unknown(plan, missing[0])


def _common(
    plan: Plan, spec: Spec, capabilities: list[str] | None, *, compat: bool
) -> list[Edits]:
    """Return the common edits of a spec, and the farm view that may replace them."""
    selected = _select(plan, spec["edits"], capabilities, compat=compat)
    farm = plan.get("farm")
    if farm:
        edits = no_edits()
        edits["farm"] = {"table": farm, "capabilities": capabilities, "common": list(selected)}
        selected.append(edits)
    return selected


def _select(
    plan: Plan, edits: Edits, capabilities: list[str] | None, *, compat: bool
) -> list[Edits]:
    """Return edits, their parts for the capabilities, and the hook that does their work."""
    selected = [edits]
    for name, part in edits.get("parts", {}).items():
        if is_wanted(name, capabilities):
            selected.append(part)
    work = merge([edit["work"] for edit in selected if "work" in edit])
    if not compat:
        work["compat"] = {}
    if any(work.values()):
        hook_edits = no_edits()
        hook_edits["hook"] = {"program": plan["hook"], "work": work}
        selected.append(hook_edits)
    return selected


def merge(works: list[Work]) -> Work:
    """Return the union of several works; links and folders are distinct and in order."""
    merged = no_work()
    links: dict[str, list[str]] = {}
    for work in works:
        for link in work["links"]:
            links.setdefault("\0".join(link), link)
        merged["folders"] += [f for f in work["folders"] if f not in merged["folders"]]
        merged["compat"] = work["compat"] or merged["compat"]
        merged["params"] = work["params"] or merged["params"]
        merged["profile"] = work["profile"] or merged["profile"]
    merged["links"] = list(links.values())
    return merged


def no_work() -> Work:
    """Return empty work."""
    return {"links": [], "folders": [], "compat": {}, "params": False, "profile": False}


def check_mount_sources(edits: list[Edits]) -> None:
    """Raise StalePlanError if a mount source of the edits is missing."""
    for edit in edits:
        for _, text in edit["mounts"]:
            source = text.partition('"source":"')[2].partition('"')[0]
            if source[:1] == "/" and "\\" not in source:  # paths with escapes are rare: not tested
                try:
                    posix.stat(source)
                except OSError as error:
                    raise StalePlanError(
                        f"{source} has just disappeared",
                        hint="is the driver being installed? try again",
                    ) from error


def is_wanted(name: str, capabilities: list[str] | None) -> bool:
    """Report whether a driver capability is requested."""
    return name in capabilities if capabilities is not None else name != NOT_BY_DEFAULT


def no_edits() -> Edits:
    """Return empty edits."""
    return {"env": [], "nodes": [], "mounts": [], "hooks": {}, "gids": [], "net": {}, "rdt": ""}


def common(
    plan: Plan, kind: str, capabilities: list[str] | None = None, *, compat: bool = True
) -> list[Edits]:
    """Return the common edits of the first spec of a kind: driver files and control nodes.

    Raises CdiSpecError if no spec of this kind is in the plan; StalePlanError if a fingerprint of
    the spec does not match; StaleSpecError if the spec no longer describes the host.
    """
    for name, device in plan["devices"].items():
        if name.partition("=")[0] == kind:
            spec = plan["specs"][device["spec"]]
            _check_fingerprints(name, spec["facts"])
            if spec["refuse"]:
                raise _stale(kind, spec["path"], spec["refuse"])
            return _common(plan, spec, capabilities, compat=compat)
    raise CdiSpecError(f"no CDI spec of kind {kind}", hint="make one: nvidia-ctk cdi generate")


def _is_own(path: str) -> bool:
    return path.rpartition("/")[2] == paths.OWN_SPEC


def _check_fingerprints(name: str, about: list[fingerprints.Fingerprint]) -> None:
    if fingerprints.broken(about):
        raise StalePlanError(
            f"{name} keeps changing while it is being read",
            hint="is the driver being installed, or MIG being configured? try again",
        )


def _stale(name: str, path: str, reason: str) -> StaleSpecError:
    if _is_own(path):  # it is new
        if reason.startswith("its hook"):
            hint = "nvct launchers install puts the hook in place"
        else:
            hint = "is the driver being installed? try again"
        return StaleSpecError(f"{name}: {reason}", hint=hint)
    if name.startswith("nvidia.com/"):
        hint = "regenerate it with nvidia-ctk cdi generate"
    else:
        hint = "regenerate it with its vendor's tool"
    return StaleSpecError(f"{name} of {path}: {reason}", hint=hint)


def _unknown(plan: Plan, name: str) -> UnknownDeviceError:
    kind, _, device = name.partition("=")
    devices = [n.partition("=")[2] for n in plan["devices"] if n.partition("=")[0] == kind]
    short = [n for n in devices if len(n) < 8]
    listed = ", ".join((short or devices)[:12]) + (" ..." if len(short or devices) > 12 else "")
    if devices:
        is_own_plan = all(map(_is_own, [spec["path"] for spec in plan["specs"]]))
        hint = "nvidia-smi -L shows the GPUs" if is_own_plan else "nvidia-ctk cdi list shows all"
        mig_devices = [n for n in devices if n.startswith(device + ":")]
        if mig_devices:
            hint = f"GPU {device} is in MIG mode: ask for {' or '.join(mig_devices[:2])}"
        elif is_own_plan and device.count(":") > 1:  # a PCI bus id
            hint = "nvidia-smi shows bus ids; for a GPU in MIG mode, ask for its MIG devices"
        elif is_own_plan and devices == ["all"]:
            hint = "ask for all: WSL does not tell its GPUs apart"
        return UnknownDeviceError(f"{kind} has no device {device!r}; it has {listed}", hint=hint)
    reason = f" ({plan['problems'][0]})" if plan["problems"] else ""
    return UnknownDeviceError(
        f"no CDI spec defines {name!r}{reason}", hint="nvidia-ctk cdi list shows all devices"
    )
