# SPDX-License-Identifier: Apache-2.0
"""Compiled edits into a bundle's config.json.

Hot. The rules are those of the CDI specification 1.1 and its reference library, with these
differences: env is replaced by key wherever it stands, so that a variable is there once; a device
rule is not written again behind the last one that denies; existing mounts keep their order, ours
come last, and a mount of the container that lies below one of ours is kept above it.
"""

from __future__ import annotations

from nvct.oci.jsontext import parse, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Edits, Node
    from nvct.oci.bundle import Bundle

ONCE = ("NVIDIA_VISIBLE_DEVICES",)
"""What is in the environment once, whatever the image, the engine and the edits say."""
NVIDIA_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")


def apply(bundle: Bundle, edits: list[Edits]) -> None:
    """Edit the bundle's document; nothing is written.

    Raises:
        DocumentError: a member that must be an array is none.
    """
    _env(bundle, [e for one in edits for e in one["env"]])
    bound = _nodes(bundle, [n for one in edits for n in one["nodes"]])
    _mounts(bundle, [m for one in edits for m in one["mounts"]] + bound)
    _hooks(bundle, edits)
    _gids(bundle, [g for one in edits for g in one["gids"]])
    document = bundle.document
    for one in edits:
        for interface, text in one["net"].items():
            document.put(("linux", "netDevices", interface), text)
        if one["rdt"]:
            document.put(("linux", "intelRdt"), one["rdt"])


def _env(bundle: Bundle, entries: list[str]) -> None:
    """Replace by key, else append; a key that is there twice is left once."""
    wanted = {entry.partition("=")[0]: entry for entry in entries}
    path = ("process", "env")
    document = bundle.document
    for name in ONCE:
        there = [entry for entry in bundle.env if entry.startswith(name + "=")]
        if len(there) > 1:
            wanted.setdefault(name, there[-1])  # the one that decided
    if not wanted:
        return
    kept: list[str] = []
    replaced: set[str] = set()
    for node in document.elements(path):
        key = node.value.partition("=")[0] if isinstance(node.value, str) else None
        if key is None or key not in wanted:
            kept.append(document.fragment(node))
        elif key not in replaced:
            replaced.add(key)
            kept.append(quote(wanted[key]))
    added = [quote(entry) for key, entry in wanted.items() if key not in replaced]
    if replaced:
        document.rewrite(path, kept + added)
    else:
        document.append(path, added)


def _nodes(bundle: Bundle, nodes: list[Node]) -> list[list[str]]:
    """Replace device nodes by path, append their device rules; return those to be mounted."""
    wanted = {node["path"]: node for node in nodes}
    bound: list[list[str]] = []
    if not wanted:
        return bound
    uid, gid = bundle.process_id("uid"), bundle.process_id("gid")
    has_user_namespace = bundle.has_user_namespace()
    texts = []
    for node in wanted.values():
        text = node["node"]
        if has_user_namespace and _is_open_to_all(text):
            bound.append([node["path"], _bind(node.get("host") or node["path"], node["path"])])
            continue
        for key, value in (("uid", uid), ("gid", gid)):  # CDI: each defaults to the process's
            if value > 0 and f',"{key}":' not in text:
                text = f'{text[:-1]},"{key}":{value}}}'
        texts.append(text)
    _replace_devices(bundle, wanted, texts)
    _rules(bundle, [node["rule"] for node in wanted.values() if node["rule"]])
    return bound


def _is_open_to_all(text: str) -> bool:
    """Tell whether a node is better the host's own in a user namespace.

    No node can be made in there. runc binds the host's, at the path in the container. crun (since
    1.8) makes one outside and lets the umask take the permission to write from it, so that only
    the container's root could open a GPU. A node with an owner, or not open to everybody, is left
    to the runtime: the host's has owners that the container does not know.
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
    """Append device rules; the last rule that fits a device decides, so not if one is in force."""
    path = ("linux", "resources", "devices")
    there: list[object] = []
    for node in bundle.document.elements(path):
        if isinstance(node.value, dict) and node.value.get("allow") is not True:
            there = []
        else:
            there.append(node.value)
    added = [rule for rule in dict.fromkeys(rules) if parse(rule, "a plan") not in there]
    bundle.document.append(path, added)


def _replace_devices(bundle: Bundle, wanted: dict[str, Node], texts: list[str]) -> None:
    """Append device nodes and drop those there that have the same path."""
    path = ("linux", "devices")
    document = bundle.document
    elements = document.elements(path)
    kept = []
    for node in elements:
        place = node.value.get("path") if isinstance(node.value, dict) else None
        if not (isinstance(place, str) and place in wanted):
            kept.append(document.fragment(node))
    if len(kept) == len(elements):
        document.append(path, texts)
    else:
        document.rewrite(path, kept + texts)


def _clean(path: str) -> str:
    """Return a mount destination as one absolute path: no doubled slashes, no dots."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _mounts(bundle: Bundle, mounts: list[list[str]]) -> None:
    """Append mounts; same destinations are replaced, what lies below ours stays behind it."""
    wanted = {_clean(destination): text for destination, text in mounts}
    if not wanted:
        return
    document = bundle.document
    kept: list[str] = []
    below: list[tuple[str, str]] = []
    parents = tuple([destination + "/" for destination in wanted])
    elements = document.elements(("mounts",))
    for node in elements:
        destination = node.value.get("destination") if isinstance(node.value, dict) else None
        clean = _clean(destination) if isinstance(destination, str) else ""
        if clean in wanted:
            continue
        if clean.startswith(parents):
            below.append((clean, document.fragment(node)))
        else:
            kept.append(document.fragment(node))
    ours = [(destination, wanted[destination]) for destination in sorted(wanted, key=_depth)]
    texts = [text for _, text in (_woven(ours, below) if below else ours)]
    if len(kept) == len(elements):
        document.append(("mounts",), texts)
    else:
        document.rewrite(("mounts",), kept + texts)


def _woven(ours: list[tuple[str, str]], below: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Put each of our mounts right before the first one that lies below it."""
    woven = list(below)
    for mount in ours:
        places = [i for i, (other, _) in enumerate(woven) if other.startswith(mount[0] + "/")]
        woven.insert(places[0] if places else len(woven), mount)
    return woven


def _depth(destination: str) -> int:
    return destination.count("/")


def _hooks(bundle: Bundle, edits: list[Edits]) -> None:
    for one in edits:
        for point, texts in one["hooks"].items():
            bundle.document.append(("hooks", point), texts)
        if "hook" in one:
            from nvct.container.plan import hook_command  # few containers need a hook

            text = hook_command.text(one["hook"])
            bundle.document.append(("hooks", hook_command.POINT), [text])


def _gids(bundle: Bundle, gids: list[int]) -> None:
    """Append groups; one that the user namespace does not have would fail the create."""
    path = ("process", "user", "additionalGids")
    there = [node.value for node in bundle.document.elements(path)]
    added: list[str] = []
    for gid in gids:
        if gid > 0 and gid not in there and str(gid) not in added and bundle.has_group(gid):
            added.append(str(gid))
    bundle.document.append(path, added)


def remove_nvidia_hooks(bundle: Bundle) -> bool:
    """Drop the incumbent's prestart hooks, whose work the shim does; return whether one was there.

    As nvidia-container-toolkit v1.20 does in its cdi and jit-cdi modes.
    """
    path = ("hooks", "prestart")
    document = bundle.document
    elements = document.elements(path)
    kept = []
    for node in elements:
        hook = node.value.get("path") if isinstance(node.value, dict) else None
        if not (isinstance(hook, str) and hook.rpartition("/")[2] in NVIDIA_HOOKS):
            kept.append(document.fragment(node))
    if len(kept) == len(elements):
        return False
    document.rewrite(path, kept)
    return True
