# SPDX-License-Identifier: Apache-2.0
"""An OCI bundle's config.json: what a request needs of it, and the edits that go into it.

Hot. The file is read once; edits are pasted into its text, so unknown fields, order and number
formats survive. It is written by temporary file and rename, and only when something changed.
"""

from __future__ import annotations

from nvct.errors import BundleError, DocumentError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.kernel import Kernel

LIMIT = 64 << 20
HOOK_POINTS = (
    "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop",
)  # fmt: skip
MAPPINGS = (("linux", "uidMappings"), ("linux", "gidMappings"))
WRITER = "the container engine writes this file"
STEP_BUDGET = 20_000
"""Steps of walks in a container's root: 7 us each. A usual create takes 500."""


def _array(*members: str) -> jsontext.Want:
    """Return the mark of an array of objects with these members (runtime-spec 1.2, config.go)."""
    return {jsontext.EACH: dict.fromkeys(members)}


def _want() -> jsontext.Want:
    """Return the members of config.json that a request reads or an edit changes."""
    elements = jsontext.ELEMENTS
    mappings = _array("containerID", "hostID", "size")
    hooks = _array("path", "args", "env", "timeout")
    return {
        "process": {
            "env": elements,
            "user": {"uid": None, "gid": None, "additionalGids": elements},
            "capabilities": {"bounding": None},
        },
        "root": {"path": None, "readonly": None},
        "mounts": _array("destination", "type", "source", "options", "uidMappings", "gidMappings"),
        "annotations": None,
        "hooks": dict.fromkeys(HOOK_POINTS, hooks),
        "linux": {
            "devices": _array("path", "type", "major", "minor", "fileMode", "uid", "gid"),
            "resources": {"devices": _array("allow", "type", "major", "minor", "access")},
            "netDevices": {},
            "intelRdt": None,
            "gidMappings": mappings,
            "namespaces": _array("type", "path"),
            "uidMappings": mappings,
            "cgroupsPath": None,
        },
    }


class Bundle:
    """A bundle's config.json, read and ready to be edited.

    Attributes:
        path: of config.json.
        document: its text, walked.
        steps_left: how many steps this create may still take in the container's root.
    """

    __slots__ = ("document", "path", "steps_left")

    def __init__(self, path: str, text: str) -> None:
        """Walk the text of a config.json.

        Raises:
            BundleError: it is no JSON object, or a part that matters has another type.
        """
        self.path = path
        self.steps_left = STEP_BUDGET
        try:
            self.document = jsontext.Document(text, _want(), path)
        except DocumentError as error:
            raise BundleError(error.message, hint=WRITER) from error

    @property
    def env(self) -> list[str]:
        """process.env; entries that are no strings are left out."""
        return [v for v in self._values(("process", "env")) if isinstance(v, str)]

    @property
    def mounts(self) -> list[dict[str, jsontext.Json]]:
        """The mounts."""
        return [v for v in self._values(("mounts",)) if isinstance(v, dict)]

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations whose values are strings."""
        found = self.document.value(("annotations",))
        if not isinstance(found, dict):
            return {}
        return {k: v for k, v in found.items() if isinstance(v, str)}

    @property
    def bounding(self) -> list[str]:
        """The bounding set, empty where its capabilities are those of a user namespace.

        It is process.capabilities.bounding, or the flat list of runtime-spec before 1.0.0-rc5.
        A mapping of ids counts as a user namespace: nothing else uses one.
        """
        if self.has_user_namespace() or any(map(self.objects, MAPPINGS)):
            return []
        found = self.document.value(("process", "capabilities", "bounding"))
        if found is None:
            found = self.document.value(("process", "capabilities"))
        if not isinstance(found, list):
            return []
        return [v for v in found if isinstance(v, str)]

    def process_id(self, which: str) -> int:
        """Return process.user.uid or .gid, 0 where it is not said."""
        found = self.document.value(("process", "user", which))
        return found if isinstance(found, int) and not isinstance(found, bool) else 0

    def host_root(self) -> tuple[int, int] | None:
        """Return the host's ids of the container's root user and group, None where it has none."""
        ids = (self._mapped("uidMappings"), self._mapped("gidMappings"))
        return None if None in ids else ids  # type: ignore[return-value]  # no None

    def has_user_namespace(self) -> bool:
        """Tell whether the container gets, or joins, a user namespace."""
        spaces = self.objects(("linux", "namespaces"))
        return any(space.get("type") == "user" for space in spaces)

    def has_group(self, gid: int) -> bool:
        """Tell whether a group exists in the container's user namespace, as far as it is known."""
        found = self.objects(("linux", "gidMappings"))
        for entry in found:
            first, size = entry.get("containerID"), entry.get("size")
            if isinstance(first, int) and isinstance(size, int) and first <= gid < first + size:
                return True
        return not found

    def objects(self, path: tuple[str, ...]) -> list[dict[str, jsontext.Json]]:
        """Return the objects of an array; none where something else stands there."""
        node = self.document.find(path)
        elements = node.elements if node is not None else None
        return [one.value for one in elements or () if isinstance(one.value, dict)]

    def _mapped(self, which: str) -> int | None:
        found = self.objects(("linux", which))
        if not found:
            return 0
        for entry in found:
            if entry.get("containerID") == 0 and entry.get("size"):
                host = entry.get("hostID")
                if isinstance(host, int) and not isinstance(host, bool) and host >= 0:
                    return host
        return None

    def _values(self, path: tuple[str, ...]) -> list[jsontext.Json]:
        try:
            return [node.value for node in self.document.elements(path)]
        except DocumentError as error:
            raise BundleError(error.message, hint=WRITER) from error

    def save(self, kernel: Kernel) -> bool:
        """Write config.json in one step if anything changed; return whether it was.

        Raises:
            BundleError: it cannot be written.
            UnsafePathError: something else than a regular file took its place.
        """
        if not self.document.changed:
            return False
        from nvct.linux.files import write_atomic

        try:
            text = self.document.render()
            if text == self.document.text:
                return False
            write_atomic(self.path, text.encode("utf-8", "surrogateescape"), kernel=kernel)
        except OSError as error:
            raise BundleError(f"cannot write {self.path}: {error.strerror}") from error
        except DocumentError as error:
            raise BundleError(error.message) from error
        return True


def clean(path: str) -> str:
    """Return a path without empty, "." and resolvable ".." components, without reading links.

    Runtimes in Go apply the same function, filepath.Clean, to mounts.
    """
    rooted = path[:1] == "/"
    if rooted and "//" not in path and "/." not in path and path[-1] != "/":
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part in {"", "."}:
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif not rooted:
            parts.append("..")
    return ("/" if rooted else "") + "/".join(parts) or "."


def mount_target(destination: str) -> str:
    """Return the destination of a mount as a clean absolute path; runtimes add a missing slash."""
    return clean(destination if destination[:1] == "/" else f"/{destination}")


def config_path(bundle: str, config: str = "") -> str:
    """Return where config.json is: in the bundle, else in the cwd, or where --config says.

    crun takes the value of --config from the cwd, but the plain name "config.json" from the
    bundle (create.c of 1.8).
    """
    if config not in ("", "config.json"):
        return config
    return f"{bundle}/config.json" if bundle else "config.json"


def load(path: str) -> Bundle:
    """Read a bundle's config.json.

    Raises:
        BundleError: it cannot be read, is too large, or is no JSON object.
    """
    from nvct.linux.files import read_bytes

    hint = "--bundle must name an OCI bundle"
    try:
        data = read_bytes(path, LIMIT)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except DocumentError as error:
        raise BundleError(error.message, hint=hint) from error
    return Bundle(path, data.decode("utf-8", "surrogateescape"))
