# SPDX-License-Identifier: Apache-2.0
"""Plans: CDI specs compiled into ready-made OCI fragments, and how a name is looked up in one.

Hot. A plan is a JSON object::

    {"nvct-plan": 5,
     "config":  path,                           of the config.toml that it was compiled under
     "facts":   [fact, ...],                    what the whole plan was compiled from
     "specs":   [{"path": ..., "facts": [...], "edits": Edits, "refuse": ""}, ...],
     "edits":   [Edits, ...],                   of the devices; two names of one device share one
     "devices": {"vendor/class=name": {"spec": i, "edits": j, "facts": [...], "refuse": ""}},
     "kinds":   ["vendor/class", ...],
     "problems": ["sentence", ...],             spec files that could not be used
     "conflicts": {"vendor/class=name": [path, ...]},    names that several files define
     "host": {"driver": ..., "cuda": ...},      what NVIDIA_REQUIRE_* is held against
     "made":  nanoseconds since 1970}           when it was ready

    Edits = {"env": ["K=V"], "nodes": [{"path": ..., "node": text, "rule": text}],
             "mounts": [[destination, text]], "hooks": {"createContainer": [text]},
             "gids": [int], "net": {host interface: text}, "rdt": text}

where each `text` is JSON that is pasted into config.json. `refuse` is the sentence with which a
request is turned down, "" where it is not. Edits of nvct's own plan may have more members::

    "parts": {capability: Edits},   what only containers with this driver capability get
    "work":  Work,                  what is to be done in the container's root besides the mounts
    "cache": [[machine, name, path], ...]    how the dynamic linker finds what "mounts" brings

The work of edits and of the parts that are taken is merged by `collect`, into edits whose member
"hook" says which program does it unless it is done beforehand. That program is the plan's "hook".
Under "parents" the plan has the numbers of the GPUs in MIG mode, which are no devices themselves:
{UUID, index or PCI bus id: [major, minor]}. The plan "properties" has no devices, but
"gpus": {name: {"brand": ..., "arch": ...}}.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.plan import fingerprints as facts
from nvct.errors import CdiSpecError, HostError, StaleSpecError, UnknownDeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Node(TypedDict):
        """A device node: its path in the container and on the host, OCI device, device rule."""

        path: str
        host: str
        node: str
        rule: str

    class Compat(TypedDict, total=False):
        """What the choice of CUDA compatibility libraries needs; {}: the image's are not used.

        Versions of the host's driver and of the CUDA that it supports, one of them "" or missing;
        the folder where images have the libraries, missing for the usual one.
        """

        driver: str
        cuda: str
        folder: str

    class Work(TypedDict):
        """What is to be done in a container's root.

        Symbolic links, [target, path] each; folders that the dynamic linker has to search; the
        choice of CUDA compatibility libraries; whether the driver's params are masked, and
        whether there is an application profile for EGL.
        """

        links: list[list[str]]
        folders: list[str]
        compat: Compat
        params: bool
        profile: bool

    class Program(TypedDict):
        """The hook program: its path on the host, argv up to the options, environment."""

        path: str
        args: list[str]
        env: list[str]

    class Hook(TypedDict):
        """Work, and the program that does it as a createContainer hook."""

        program: Program
        work: Work

    class Farm(TypedDict):
        """What gives containers the driver by a view; made by `nvct.compile.farm_table`."""

        view: str
        why: str
        version: str
        facts: list[facts.Fact]
        cache: dict[str, list[list[str]]]
        cache32: dict[str, list[list[str]]]
        links: dict[str, list[list[str]]]
        links32: dict[str, list[list[str]]]
        mounts: dict[str, list[list[str]]]
        env: dict[str, list[str]]
        params: bool
        staged: bool

    class Instead(TypedDict):
        """A view that can take the place of the edits that all of its containers get."""

        table: Farm
        capabilities: list[str] | None
        common: list[Edits]

    class MoreEdits(TypedDict, total=False):
        """What only edits of nvct's own plan have.

        `hook` and `farm` stand in edits of `collect` that have nothing else.
        """

        parts: dict[str, Edits]
        work: Work
        cache: list[list[str]]
        hook: Hook
        farm: Instead

    class Edits(MoreEdits):
        """Compiled container edits."""

        env: list[str]
        nodes: list[Node]
        mounts: list[list[str]]
        hooks: dict[str, list[str]]
        gids: list[int]
        net: dict[str, str]
        rdt: str

    class Spec(TypedDict):
        """One compiled CDI spec."""

        path: str
        facts: list[facts.Fact]
        edits: Edits
        refuse: str

    class Device(TypedDict):
        """One selectable name."""

        spec: int
        edits: int
        facts: list[facts.Fact]
        refuse: str

    BasePlan = TypedDict(
        "BasePlan",
        {
            "nvct-plan": int,
            "config": str,
            "facts": list[facts.Fact],
            "specs": list[Spec],
            "edits": list[Edits],
            "devices": dict[str, Device],
            "kinds": list[str],
            "problems": list[str],
            "conflicts": dict[str, list[str]],
            "host": dict[str, str],
        },
    )

    class Plan(BasePlan, total=False):
        """A plan; nvct's own has a hook and a table of the driver's view."""

        hook: Program
        farm: Farm
        made: int
        parents: dict[str, list[int]]


FORMAT = 5
NOT_BY_DEFAULT = "compat32"
"""The capability that has to be asked for by name: the incumbent's CDI modes never deliver it."""
KEY = "nvct-plan"


def is_current(plan: object) -> bool:
    """Whether this is a plan of this version whose facts all hold."""
    if not isinstance(plan, dict) or plan.get(KEY) != FORMAT:
        return False
    found = plan.get("facts")
    if not isinstance(found, list) or facts.broken(found) is not None:
        return False
    farm = plan.get("farm")
    if farm is None:
        return True
    found = farm.get("facts") if isinstance(farm, dict) else None
    return isinstance(found, list) and facts.broken(found) is None


class StalePlanError(HostError):
    """A plan no longer describes the host: it must be compiled again.

    Where it has just been compiled, the message is the user's.
    """


def collect(
    plan: Plan, names: list[str], capabilities: list[str] | None = None, *, compat: bool = True
) -> list[Edits]:
    """Return the edits for qualified device names: each spec's common ones first, once.

    Two names of the same device count once.

    Args:
        plan: a current one.
        names: of devices.
        capabilities: driver capabilities that are wanted; None for all but compat32.
        compat: whether CUDA compatibility libraries of the image may replace the driver's. Only
            nvct's own plan chooses; hooks of others' specs stay as they are.

    Raises:
        UnknownDeviceError: a name is not in the plan.
        StaleSpecError: a name's spec no longer describes the host.
        StalePlanError: a fact about a requested device is no longer true.
    """
    check_known(plan, names)
    found: list[Edits] = []
    specs: list[int] = []
    seen: list[int] = []
    for name in names:
        device = plan["devices"][name]
        spec = plan["specs"][device["spec"]]
        _refuse_changing(name, spec["facts"] + device["facts"])
        refuse = spec["refuse"] or device["refuse"]
        if refuse:
            raise _stale(name, spec["path"], refuse)
        if device["spec"] not in specs:
            specs.append(device["spec"])
            found += _common(plan, spec, capabilities, compat=compat)
        if device["edits"] not in seen:
            seen.append(device["edits"])
            found += _chosen(plan, plan["edits"][device["edits"]], capabilities, compat=compat)
    return found


def check_known(plan: Plan, names: list[str]) -> None:
    """Refuse names that a plan does not have.

    Raises:
        UnknownDeviceError: a name is not in the plan.
    """
    missing = [name for name in names if name not in plan["devices"]]
    if missing:
        raise _unknown(plan, missing[0])


def _common(
    plan: Plan, spec: Spec, capabilities: list[str] | None, *, compat: bool
) -> list[Edits]:
    """Return what a spec's devices have in common, and by what the driver may come instead."""
    found = _chosen(plan, spec["edits"], capabilities, compat=compat)
    farm = plan.get("farm")
    if farm:
        made = no_edits()
        made["farm"] = {"table": farm, "capabilities": capabilities, "common": list(found)}
        found.append(made)
    return found


def _chosen(
    plan: Plan, edits: Edits, capabilities: list[str] | None, *, compat: bool
) -> list[Edits]:
    """Return edits, those parts of them that are wanted, and the hook that does their work."""
    found = [edits]
    for name, part in edits.get("parts", {}).items():
        if is_wanted(name, capabilities):
            found.append(part)
    work = merge([one["work"] for one in found if "work" in one])
    if not compat:
        work["compat"] = {}
    if any(work.values()):
        made = no_edits()
        made["hook"] = {"program": plan["hook"], "work": work}
        found.append(made)
    return found


def merge(several: list[Work]) -> Work:
    """Return work that does what several do; each link and folder once, in their order."""
    found = no_work()
    links: dict[str, list[str]] = {}
    for work in several:
        for link in work["links"]:
            links.setdefault("\0".join(link), link)
        found["folders"] += [one for one in work["folders"] if one not in found["folders"]]
        found["compat"] = work["compat"] or found["compat"]
        found["params"] = work["params"] or found["params"]
        found["profile"] = work["profile"] or found["profile"]
    found["links"] = list(links.values())
    return found


def no_work() -> Work:
    """Return work that is nothing."""
    return {"links": [], "folders": [], "compat": {}, "params": False, "profile": False}


def refuse_gone(edits: list[Edits]) -> None:
    """Refuse edits of which a file or folder to be mounted is not there.

    Raises:
        StalePlanError: it is so.
    """
    for one in edits:
        for _, text in one["mounts"]:
            source = text.partition('"source":"')[2].partition('"')[0]
            if source[:1] == "/" and "\\" not in source:  # an escape is rare, and left alone
                try:
                    posix.stat(source)
                except OSError as error:
                    raise StalePlanError(
                        f"{source} went away meanwhile",
                        hint="is the driver being installed? try again",
                    ) from error


def is_wanted(name: str, capabilities: list[str] | None) -> bool:
    """Tell whether a driver capability is among those that are wanted."""
    return name in capabilities if capabilities is not None else name != NOT_BY_DEFAULT


def no_edits() -> Edits:
    """Return edits that change nothing."""
    return {"env": [], "nodes": [], "mounts": [], "hooks": {}, "gids": [], "net": {}, "rdt": ""}


def common(
    plan: Plan, kind: str, capabilities: list[str] | None = None, *, compat: bool = True
) -> list[Edits]:
    """Return the common edits of a kind's first spec: driver files and control nodes, no GPU.

    Raises:
        CdiSpecError: no spec of this kind is in the plan.
        StalePlanError: a fact about the spec is no longer true.
        StaleSpecError: the spec no longer describes the host.
    """
    for name, device in plan["devices"].items():
        if name.partition("=")[0] == kind:
            spec = plan["specs"][device["spec"]]
            _refuse_changing(name, spec["facts"])
            if spec["refuse"]:
                raise _stale(kind, spec["path"], spec["refuse"])
            return _common(plan, spec, capabilities, compat=compat)
    raise CdiSpecError(f"no CDI spec of kind {kind}", hint="make one: nvidia-ctk cdi generate")


def _is_own(path: str) -> bool:
    return path.rpartition("/")[2] == paths.OWN_SPEC


def _refuse_changing(name: str, about: list[facts.Fact]) -> None:
    if facts.broken(about):
        raise StalePlanError(
            f"{name} keeps changing while it is being read",
            hint="is the driver being installed, or MIG being configured? try again",
        )


def _stale(name: str, path: str, reason: str) -> StaleSpecError:
    if _is_own(path):  # it has just been made
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
    there = [n.partition("=")[2] for n in plan["devices"] if n.partition("=")[0] == kind]
    short = [n for n in there if len(n) < 8]
    listed = ", ".join((short or there)[:12]) + (" ..." if len(short or there) > 12 else "")
    if there:
        own = all(map(_is_own, [spec["path"] for spec in plan["specs"]]))
        hint = "nvidia-smi -L shows the GPUs" if own else "nvidia-ctk cdi list shows all"
        parts = [n for n in there if n.startswith(device + ":")]
        if parts:
            hint = f"GPU {device} is in MIG mode: ask for {' or '.join(parts[:2])}"
        elif own and device.count(":") > 1:  # a PCI bus id
            hint = "nvidia-smi shows bus ids; of a GPU in MIG mode ask for its MIG devices"
        elif own and there == ["all"]:
            hint = "ask for all: WSL does not tell its GPUs apart"
        return UnknownDeviceError(f"{kind} has no device {device!r}; it has {listed}", hint=hint)
    reason = f" ({plan['problems'][0]})" if plan["problems"] else ""
    return UnknownDeviceError(
        f"no CDI spec defines {name!r}{reason}", hint="nvidia-ctk cdi list shows what there is"
    )
