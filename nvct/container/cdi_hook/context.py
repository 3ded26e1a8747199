# SPDX-License-Identifier: Apache-2.0
"""The context of a hook: its flags, the container's root, and a function for warnings.

The path of the root comes from the state that the runtime passes: a top-level `root` (crun), or
`root.path` in config.json of the bundle. A process id is never used. The working directory is used
only if a user namespace cannot read the bundle: Docker's is in folders of the host's root.
The root is opened once, and all access to the container goes through that descriptor. If the
runtime has already made the root read-only, files are written in a private mount namespace.
"""

from __future__ import annotations

import posix

from nvct.errors import BundleError, DocumentError
from nvct.linux.constants import ST_RDONLY
from nvct.linux.kernel import KERNEL
from nvct.linux.root import Root
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.plan.hook_command import Options
    from nvct.linux.kernel import Kernel

STATE_LIMIT = 1 << 20
CONFIG_LIMIT = 64 << 20
STEP_BUDGET = 50_000
"""Path components in a container's root, 4 to 7 us each. A usual run takes 1,000."""
STATE_HINT = "the OCI runtime hands the container's state to a hook on stdin"


class Context:
    """One run of one hook."""

    __slots__ = (
        "_bundle", "_is_checked", "_root", "_stdin_fd", "bundle", "kernel", "options",
        "proc_root", "steps_left", "warn",
    )  # fmt: skip

    def __init__(
        self,
        options: Options,
        stdin_fd: int,
        warn: Callable[[str], None],
        *,
        kernel: Kernel = KERNEL,
    ) -> None:
        self.options = options
        self.kernel = kernel
        self.proc_root = options.text("proc-root", "/proc")
        self.warn = warn
        self.steps_left = STEP_BUDGET
        self._stdin_fd = stdin_fd
        self._bundle = ""
        self._is_checked = False
        self.bundle = ""  # the container's bundle, as its state names it; "" until that was read
        self._root: Root | None = None

    def mounts(self) -> Root:
        """Return the container's root, to mount in it; the first call opens it.

        Call it before `root()`, which may leave the mount namespace. Raises BundleError if the
        state or config.json cannot be read or names no root; UnsafePathError if the container's
        root is the root of the host; HostError if the directory does not exist.
        """
        if self._root is None:
            host = f"{self.proc_root}/self/root"
            self._root = Root.of_container(self._root_path(), self, host)
        return self._root

    def root(self) -> Root:
        """Return the container's root, to read and write files in it; errors as of `mounts`."""
        root = self.mounts()
        if not self._is_checked:
            self._is_checked = True
            if posix.fstatvfs(root.fd).f_flag & ST_RDONLY and self._is_asked_read_only():
                from nvct.container.cdi_hook import readonly

                self._root = readonly.writable(root, self.proc_root, self.kernel)
                self._root.budget = self
                if self._root is not root:
                    root.close()
                return self._root
        return root

    def close(self) -> None:
        """Close the container's root."""
        if self._root is not None:
            self._root.close()
            self._root = None

    def _is_asked_read_only(self) -> bool:
        if not self._bundle:
            return False
        section = read_object(f"{self._bundle}/config.json", "config").get("root")
        return isinstance(section, dict) and section.get("readonly") is True

    def state(self) -> dict[str, jsontext.Json]:
        """Return the container's state, which can be read once. Raises BundleError."""
        source = self.options.text("container-spec", "-")
        return read_object(source if source not in {"", "-"} else self._stdin_fd, "state")

    def _root_path(self) -> str:
        state = self.state()
        root = _text(state, "root", "the container's state")  # crun 1.8: relative to the bundle
        bundle = _text(state, "bundle", "the container's state")
        self.bundle = bundle
        self._bundle = bundle if bundle.startswith("/") else ""
        if root.startswith("/"):
            return root
        if not bundle:
            raise BundleError("the container's state names no bundle", hint=STATE_HINT)
        if not self._bundle:
            text = f"the container's state has the relative path {bundle!r}"
            raise BundleError(text, hint=STATE_HINT)
        if root:
            return f"{bundle}/{root}"
        if self._is_closed(f"{bundle}/config.json"):
            # runc starts createContainer hooks in the root; crun's state names it (above).
            self._bundle = ""
            return "."
        config = read_object(f"{bundle}/config.json", "config")
        section = config.get("root")
        path = _text(section, "path", f"{bundle}/config.json") if section is not None else ""
        if not path:
            raise BundleError(f"{bundle}/config.json has no root.path")
        return path if path.startswith("/") else f"{bundle}/{path}"

    def _is_closed(self, path: str) -> bool:
        """Report whether its user namespace prevents this process from reading a path."""
        try:
            posix.stat(path)
        except PermissionError:
            from nvct.linux.files import has_every_id

            return not has_every_id(proc=self.proc_root)
        except (OSError, ValueError):  # UnicodeEncodeError and NUL are ValueErrors
            return False  # reading the path reports the error
        return False


def process_of(state: dict[str, jsontext.Json]) -> tuple[int, str]:
    """Return PID and bundle of a container's state; Docker before 17.06 writes `bundlePath`.

    Raises BundleError.
    """
    bundle = state.get("bundle") or state.get("bundlePath")
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        text = f"the container's state has the bundle {bundle!r:.100}"
        raise BundleError(text, hint=STATE_HINT)
    pid = state.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 2:
        raise BundleError(f"the container's state has the pid {pid!r:.40}", hint=STATE_HINT)
    return pid, bundle


def _text(value: jsontext.Json, key: str, source: str) -> str:
    """Return a string member, "" if it is missing."""
    if not isinstance(value, dict):
        raise BundleError(f"{source} has no JSON object with {key}")
    member = value.get(key)
    if member is None:
        return ""
    if not isinstance(member, str):
        raise BundleError(f"{source} has a {key} that is not a string")
    return member


def read_object(source: str | int, kind: str) -> dict[str, jsontext.Json]:
    """Read a JSON object from a file's path or from a descriptor."""
    label = "the container's state" if isinstance(source, int) else source
    try:
        if isinstance(source, int):
            data = _drain(source)
        else:
            from nvct.linux.files import read_bytes

            data = read_bytes(source, STATE_LIMIT if kind == "state" else CONFIG_LIMIT)
        value = jsontext.parse(data.decode("utf-8", "surrogateescape"), label)
    except OSError as error:
        raise BundleError(f"cannot read {label}: {error.strerror}", hint=STATE_HINT) from error
    except DocumentError as error:
        raise BundleError(error.message, hint=STATE_HINT) from error
    if not isinstance(value, dict):
        raise BundleError(f"{label} is not a JSON object", hint=STATE_HINT)
    return value


def _drain(fd: int) -> bytes:
    data = b""
    while True:
        part = posix.read(fd, 65536)
        if not part:
            return data
        data += part
        if len(data) > STATE_LIMIT:
            raise BundleError(f"the container's state is longer than {STATE_LIMIT} bytes")
