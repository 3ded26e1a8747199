# SPDX-License-Identifier: Apache-2.0
"""Reads and edits config.json of an OCI bundle.

Hot. The file is read once. Edits are pasted into its text, so unknown fields, order and number
formats are preserved. It is written by temporary file and rename, and only if it has changed.
"""

from __future__ import annotations

from nvct.errors import BundleError, DocumentError
from nvct.oci.document import EACH, ELEMENTS, Document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.kernel import Kernel
    from nvct.oci import jsontext
    from nvct.oci.document import Schema

LIMIT = 64 << 20
HOOK_POINTS = (
    "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop",
)  # fmt: skip
MAPPINGS = (("linux", "uidMappings"), ("linux", "gidMappings"))
WRITER = "the container engine writes this file"
STEP_BUDGET = 20_000  # Path components in a container's root: 7 us each. A usual create takes 500


def _array(*members: str) -> Schema:
    """Return the schema of an array of objects with members (runtime-spec 1.2, config.go)."""
    return {EACH: dict.fromkeys(members)}


def _schema() -> Schema:
    elements = ELEMENTS
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
            "readonlyPaths": None,
            "seccomp": {"listenerPath": None},
        },
    }


class Bundle:
    """A bundle's config.json, ready for edits; BundleError if it is not an object or ambiguous."""

    __slots__ = ("document", "path", "steps_left")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        # remaining budget for path components in the container's root
        self.steps_left = STEP_BUDGET
        try:
            self.document = Document(text, _schema(), path)
        except DocumentError as error:
            raise BundleError(error.message, hint=WRITER) from error

    @property
    def env(self) -> list[str]:
        """The strings in process.env."""
        return [v for v in self._values(("process", "env")) if isinstance(v, str)]

    @property
    def mounts(self) -> list[dict[str, jsontext.Json]]:
        """The mounts."""
        return [v for v in self._values(("mounts",)) if isinstance(v, dict)]

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations whose values are strings."""
        members = self.document.value(("annotations",))
        if not isinstance(members, dict):
            return {}
        return {k: v for k, v in members.items() if isinstance(v, str)}

    @property
    def bounding(self) -> list[str]:
        """The bounding set; empty for a container with a user namespace or mapped ids."""
        if self.has_user_namespace() or any(map(self.objects, MAPPINGS)):
            return []
        return self.capabilities

    @property
    def capabilities(self) -> list[str]:
        """The bounding set, also that of a user namespace.

        It is process.capabilities.bounding, or the flat list of runtime-spec before 1.0.0-rc5.
        """
        capabilities = self.document.value(("process", "capabilities", "bounding"))
        if capabilities is None:
            capabilities = self.document.value(("process", "capabilities"))
        if not isinstance(capabilities, list):
            return []
        return [v for v in capabilities if isinstance(v, str)]

    def process_id(self, member: str) -> int:
        """Return process.user.uid or .gid, default 0."""
        number = self.document.value(("process", "user", member))
        return number if isinstance(number, int) and not isinstance(number, bool) else 0

    def host_root(self) -> tuple[int, int] | None:
        """Return the host uid and gid of the container's root user, None if unmapped."""
        ids = (self._mapped("uidMappings"), self._mapped("gidMappings"))
        return None if None in ids else ids  # type: ignore[return-value]  # no None

    def has_user_namespace(self) -> bool:
        """Report whether the container creates or joins a user namespace."""
        namespaces = self.objects(("linux", "namespaces"))
        return any(namespace.get("type") == "user" for namespace in namespaces)

    def has_group(self, gid: int) -> bool:
        """Report whether a gid is mapped in the user namespace; True without mappings."""
        mappings = self.objects(("linux", "gidMappings"))
        for mapping in mappings:
            first, size = mapping.get("containerID"), mapping.get("size")
            if isinstance(first, int) and isinstance(size, int) and first <= gid < first + size:
                return True
        return not mappings

    def objects(self, path: tuple[str, ...]) -> list[dict[str, jsontext.Json]]:
        """Return the objects of an array; empty if the member is not an array."""
        node = self.document.find(path)
        elements = node.elements if node is not None else None
        return [e.value for e in elements or () if isinstance(e.value, dict)]

    def _mapped(self, member: str) -> int | None:
        mappings = self.objects(("linux", member))
        if not mappings:
            return 0
        for mapping in mappings:
            if mapping.get("containerID") == 0 and mapping.get("size"):
                host_id = mapping.get("hostID")
                if isinstance(host_id, int) and not isinstance(host_id, bool) and host_id >= 0:
                    return host_id
        return None

    def _values(self, path: tuple[str, ...]) -> list[jsontext.Json]:
        try:
            return [node.value for node in self.document.elements(path)]
        except DocumentError as error:
            raise BundleError(error.message, hint=WRITER) from error

    def save(self, kernel: Kernel) -> bool:
        """Replace config.json atomically if it has changed; return whether it has.

        Raises BundleError if it cannot be written, UnsafePathError if it is no longer a regular
        file.
        """
        if not self.document.changed:
            return False
        from nvct.linux.files import write_atomic

        try:
            text = self.document.render()
            if text == self.document.text:
                return False
            data = text.encode("utf-8", "surrogateescape")
            write_atomic(self.path, data, sync=False, follow=True, kernel=kernel)
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
    """Return the path of config.json: the value of --config, or in the bundle ("": the cwd).

    crun resolves --config in the cwd, except the plain name "config.json", which it takes from the
    bundle (create.c of 1.8).
    """
    if config not in ("", "config.json"):
        return config
    return f"{bundle}/config.json" if bundle else "config.json"


def load(path: str) -> Bundle:
    """Read a bundle's config.json; BundleError if it is unreadable, too large or malformed."""
    from nvct.linux.files import read_bytes

    hint = "--bundle must name an OCI bundle"
    try:
        data = read_bytes(path, LIMIT)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except DocumentError as error:
        raise BundleError(error.message, hint=hint) from error
    return Bundle(path, data.decode("utf-8", "surrogateescape"))
