# SPDX-License-Identifier: Apache-2.0
"""Applies compiled edits to config.json of a bundle.

Hot. The rules are those of the CDI specification 1.1 and its reference library, with these
differences: env is replaced by key, so each variable occurs once; a device rule that is in force
is not repeated; existing mounts keep their order and new ones come last, but before existing
mounts below them.
"""

from __future__ import annotations

from nvct.oci.bundle import mount_target
from nvct.oci.jsontext import parse, quote
from nvct.paths import RUNTIME_HOOK_ALIAS, RUNTIME_HOOK_PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import DeviceNode, Edits
    from nvct.oci.bundle import Bundle
    from nvct.oci.jsontext import Json

ONCE = ("NVIDIA_VISIBLE_DEVICES",)
"""Variables whose duplicates are removed, even if no edit sets them."""
NVIDIA_HOOKS = (RUNTIME_HOOK_PROGRAM, RUNTIME_HOOK_ALIAS)


def apply(bundle: Bundle, edits: list[Edits]) -> None:
    """Edit the document of a bundle; write no file. DocumentError if an array is not one."""
    _env(bundle, [e for edit in edits for e in edit["env"]])
    bound = _nodes(bundle, [n for edit in edits for n in edit["nodes"]])
    _mounts(bundle, [m for edit in edits for m in edit["mounts"]] + bound)
    _hooks(bundle, edits)
    _gids(bundle, [g for edit in edits for g in edit["gids"]])
    document = bundle.document
    for edit in edits:
        for interface, text in edit["net"].items():
            document.put(("linux", "netDevices", interface), text)
        if edit["rdt"]:
            document.put(("linux", "intelRdt"), edit["rdt"])


def _env(bundle: Bundle, entries: list[str]) -> None:
    """Replace variables by key or append them; remove duplicates of their keys."""
    variables = {entry.partition("=")[0]: entry for entry in entries}
    path = ("process", "env")
    document = bundle.document
    for name in ONCE:
        duplicates = [entry for entry in bundle.env if entry.startswith(name + "=")]
        if len(duplicates) > 1:
            variables.setdefault(name, duplicates[-1])  # the effective one
    if not variables:
        return
    texts: list[str] = []
    replaced: set[str] = set()
    for element in document.elements(path):
        key = element.value.partition("=")[0] if isinstance(element.value, str) else None
        if key is None or key not in variables:
            texts.append(document.fragment(element))
        elif key not in replaced:
            replaced.add(key)
            texts.append(quote(variables[key]))
    added = [quote(entry) for key, entry in variables.items() if key not in replaced]
    if replaced:
        document.rewrite(path, texts + added)
    else:
        document.append(path, added)


def _nodes(bundle: Bundle, nodes: list[DeviceNode]) -> list[list[str]]:
    """Replace device nodes by path and append their rules; return mounts for the other nodes."""
    by_path = {node["path"]: node for node in nodes}
    bound: list[list[str]] = []
    if not by_path:
        return bound
    uid, gid = bundle.process_id("uid"), bundle.process_id("gid")
    has_user_namespace = bundle.has_user_namespace()
    texts = []
    for node in by_path.values():
        text = node["node"]
        if has_user_namespace and _is_open_to_all(text):
            bound.append([node["path"], _bind(node.get("host") or node["path"], node["path"])])
            continue
        for key, value in (("uid", uid), ("gid", gid)):  # CDI: default is the process's id
            if value > 0 and f',"{key}":' not in text:
                text = f'{text[:-1]},"{key}":{value}}}'
        texts.append(text)
    bundle.document.replace(
        ("linux", "devices"), lambda device: _member(device, "path") in by_path, texts
    )
    _rules(bundle, [node["rule"] for node in by_path.values() if node["rule"]])
    return bound


def _is_open_to_all(text: str) -> bool:
    """Report whether a container in a user namespace gets a node as a bind mount.

    No node can be created in a user namespace. runc binds the node of the host that has the path
    in the container. crun (since 1.8) creates one outside with the umask applied, which removes
    write permission, so only the container's root could open a GPU. The runtime handles a node
    with an owner or without permissions for others: the container cannot map the host's owner.
    """
    node = parse(text, "a plan")
    if not isinstance(node, dict) or "uid" in node or "gid" in node:
        return False
    mode = node.get("fileMode")
    return isinstance(mode, int) and mode & 0o006 == 0o006 and node.get("type") != "p"


def _bind(source: str, destination: str) -> str:
    return (
        f'{{"destination":{quote(destination)},"type":"bind","source":{quote(source)},'
        '"options":["bind","nosuid","noexec","rprivate"]}'
    )


def _rules(bundle: Bundle, rules: list[str]) -> None:
    """Append device rules unless they are in force: equal, and no later rule denies devices."""
    path = ("linux", "resources", "devices")
    in_force: list[object] = []
    for element in bundle.document.elements(path):
        if isinstance(element.value, dict) and element.value.get("allow") is not True:
            in_force = []
        else:
            in_force.append(element.value)
    added = [rule for rule in dict.fromkeys(rules) if parse(rule, "a plan") not in in_force]
    bundle.document.append(path, added)


def _mounts(bundle: Bundle, mounts: list[list[str]]) -> None:
    """Append mounts; equal destinations are replaced, existing mounts below ours follow them."""
    texts_by_target = {mount_target(destination): text for destination, text in mounts}
    if not texts_by_target:
        return
    document = bundle.document
    unchanged: list[str] = []
    mounts_below: list[tuple[str, str]] = []
    parents = tuple([target + "/" for target in texts_by_target])
    elements = document.elements(("mounts",))
    for element in elements:
        target = mount_target(_member(element.value, "destination"))
        if target in texts_by_target:
            continue
        if target.startswith(parents):
            mounts_below.append((target, document.fragment(element)))
        else:
            unchanged.append(document.fragment(element))
    targets = sorted(texts_by_target, key=lambda target: target.count("/"))
    added = [(target, texts_by_target[target]) for target in targets]
    texts = [text for _, text in (_merge(added, mounts_below) if mounts_below else added)]
    if len(unchanged) == len(elements):
        document.append(("mounts",), texts)
    else:
        document.rewrite(("mounts",), unchanged + texts)


def _merge(
    added: list[tuple[str, str]], mounts_below: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Insert each of our mounts before the first mount below it."""
    merged = list(mounts_below)
    for mount in added:
        indexes = [i for i, (target, _) in enumerate(merged) if target.startswith(mount[0] + "/")]
        merged.insert(indexes[0] if indexes else len(merged), mount)
    return merged


def _hooks(bundle: Bundle, edits: list[Edits]) -> None:
    for edit in edits:
        for point, texts in edit["hooks"].items():
            bundle.document.append(("hooks", point), texts)
        if "hook" in edit:
            from nvct.container.plan import hook_command  # few containers need a hook

            text = hook_command.text(edit["hook"])
            bundle.document.append(("hooks", hook_command.POINT), [text])


def _gids(bundle: Bundle, gids: list[int]) -> None:
    """Append groups; a gid that is not mapped in the user namespace would fail the create."""
    path = ("process", "user", "additionalGids")
    existing = [element.value for element in bundle.document.elements(path)]
    added: list[str] = []
    for gid in gids:
        if gid > 0 and gid not in existing and str(gid) not in added and bundle.has_group(gid):
            added.append(str(gid))
    bundle.document.append(path, added)


def remove_nvidia_hooks(bundle: Bundle) -> bool:
    """Remove prestart hooks of the incumbent; return whether there was one.

    The shim does their work. nvidia-container-toolkit v1.20 also removes them in its modes cdi and
    jit-cdi.
    """
    return bundle.document.replace(
        ("hooks", "prestart"),
        lambda hook: _member(hook, "path").rpartition("/")[2] in NVIDIA_HOOKS,
        [],
    )


def _member(value: Json, key: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
