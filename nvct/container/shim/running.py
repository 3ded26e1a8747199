# SPDX-License-Identifier: Apache-2.0
"""What `exec` and `update` may give to a running container, if engine-devices is "checked".

Hot, but loaded only for these two commands. `docker exec --privileged` starts a process that can
leave the control group: the policy judges it like a container with CAP_SYS_ADMIN. The device rules
of an update are left out: the engine that writes them knows neither what the policy ignored nor
what nvct added, and crun applies them. runc ignores them in any case.
"""

from __future__ import annotations

import posix

from nvct.container.request.resolve import CAP_SYS_ADMIN
from nvct.errors import BundleError, DocumentError, NotPermittedError
from nvct.linux.files import read_bytes
from nvct.oci import argv, jsontext
from nvct.oci import bundle as bundles
from nvct.oci.document import ELEMENTS, Document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.container.host import Host
    from nvct.errors import NvctError

EXEC_VALUE = (
    "process", "p", "cap", "c", "console-socket", "pidfd-socket", "cwd", "env", "e", "user", "u",
    "additional-gids", "g", "pid-file", "process-label", "apparmor", "preserve-fds", "cgroup",
)  # fmt: skip
"""Flags of exec with a value: the help of runc 1.1 to 1.4, and of crun 1.8 to 1.28."""
STATES = ("state.json", "status")
"""The files in which runc and crun keep the path of a container's bundle."""
RUNTIMES = ("runc", "crun")
LIMIT = 16 << 20


def check(
    args: list[str],
    invocation: argv.Invocation,
    config: Config,
    host: Host,
    trouble: NvctError | None,
) -> list[str]:
    """Apply the policy to a command line; return the one for the low-level runtime.

    For the record of a refusal, `invocation.bundle` becomes the container's bundle, or its id
    while the bundle is unknown. Raises NotPermittedError if the policy denies the capability, and
    NvctError if a file cannot be read or understood.
    """
    if not config.policy and trouble is None:
        return args
    at = argv.parse_global(args, argv.Invocation()) + 1
    if args[at - 1] == "update":
        invocation.bundle = args[-1]
        return args[:at] + _without_rules(args[at:])
    container, added = _asked(args[at:])
    if CAP_SYS_ADMIN in added:
        invocation.bundle = container
        bundle = _bundle(container, invocation.root, host)
        invocation.bundle = bundle.path.rpartition("/")[0]
        _judge(bundle, config, host, trouble)
    return args


def _asked(args: list[str]) -> tuple[str, set[str]]:
    """Return the container of an exec, and the capabilities of the new process."""
    added: set[str] = set()
    i = 0
    while i < len(args) and len(args[i]) > 1 and args[i][0] == "-" and args[i] != "--":
        name, joined, value = argv.split(args[i])
        i += 1
        if name in EXEC_VALUE and not joined:
            value = "".join(args[i : i + 1])
            i += 1
        if name in ("cap", "c"):
            added.update(f"CAP_{word.strip().upper().removeprefix('CAP_')}"
                         for word in value.split(","))  # fmt: skip
        elif name in ("process", "p"):
            added |= _capabilities(value)
    return next((arg for arg in args[i:] if arg != "--"), ""), added


def _capabilities(path: str) -> set[str]:
    process = jsontext.parse(_text(path), path)
    members = process.get("capabilities") if isinstance(process, dict) else None
    sets = members.values() if isinstance(members, dict) else [members]
    return {str(name) for names in sets if isinstance(names, list) for name in names}


def _bundle(container: str, root: str, host: Host) -> bundles.Bundle:
    """Return the bundle of a running container, by its runtime's state; BundleError without it."""
    user = host.env.get("XDG_RUNTIME_DIR", "")
    is_rootless = posix.stat("/").st_uid != posix.geteuid()  # else a caller may have set it
    bases = [user, "/run"] if is_rootless and user else ["/run"]
    roots = [root] if root else [f"{base}/{name}" for base in bases for name in RUNTIMES]
    for path in [f"{folder}/{container}/{name}" for folder in roots for name in STATES]:
        try:
            text = read_bytes(path, LIMIT).decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            continue
        state = jsontext.parse(text, path)
        folder = _folder(state) if isinstance(state, dict) else ""
        if folder:
            return bundles.load(bundles.config_path(folder))
    raise BundleError(
        f"the bundle of container {container!r:.80} cannot be found in {' or '.join(roots)}",
        hint="the policy has to know the container to which exec gives CAP_SYS_ADMIN",
    )


def _folder(state: dict[str, jsontext.Json]) -> str:
    """Return the bundle's path: crun has a member for it, runc a label."""
    config = state.get("config")
    labels = config.get("labels") if isinstance(config, dict) else None
    words = [str(label) for label in labels] if isinstance(labels, list) else []
    found = [word[7:] for word in words if word.startswith("bundle=")]
    return str(state.get("bundle") or "".join(found[-1:]))


def _judge(bundle: bundles.Bundle, config: Config, host: Host, trouble: NvctError | None) -> None:
    """Apply the policy to a new process with CAP_SYS_ADMIN, unless the container has it already.

    A container that sees the host already is judged, too, as it can be older than the policy.
    """
    from nvct.container import engine_devices
    from nvct.container.host_view import way_out
    from nvct.container.plan_devices import PlanDevices
    from nvct.container.request.origin import Origin

    if CAP_SYS_ADMIN in bundle.capabilities:
        return
    bundle.document.put(("process", "capabilities", "bounding"), f'["{CAP_SYS_ADMIN}"]')
    privileged = bundles.Bundle(bundle.path, bundle.document.render())
    origin = Origin(privileged, PlanDevices(config, host))
    if not way_out(privileged, is_rootless=origin.is_rootless()):
        return
    try:
        engine_devices.check(
            privileged, config, host, origin, None, devices=[], notes=[], trouble=trouble
        )
    except NotPermittedError as error:
        raise NotPermittedError(
            f"exec would add {CAP_SYS_ADMIN}, but {error.message}", hint=error.hint
        ) from error


def _without_rules(args: list[str]) -> list[str]:
    """Return the arguments of an update whose file of resources has no device rules."""
    for i, arg in enumerate(args):
        name, joined, value = argv.split(arg)
        if arg[:1] != "-" or name not in ("resources", "r") or not (joined or args[i + 1 :]):
            continue
        path = value if joined else args[i + 1]
        document = Document(_text(path), {"devices": ELEMENTS}, path)
        if document.elements(("devices",)):
            document.rewrite(("devices",), [])
        fd = posix.memfd_create("resources", 0)  # the runtime inherits it
        posix.write(fd, document.render().encode("utf-8", "surrogateescape"))
        return [*args[:i], f"--resources=/proc/self/fd/{fd}", *args[i + 2 - joined :]]
    return args


def _text(path: str) -> str:
    """Return the text of a file, of stdin for "-". Raises BundleError if it cannot be read."""
    try:
        if path != "-":
            return read_bytes(path, LIMIT).decode("utf-8", "surrogateescape")
        data = b""
        while part := posix.read(0, 1 << 20):
            data += part
        return data.decode("utf-8", "surrogateescape")
    except (OSError, DocumentError) as error:
        raise BundleError(f"cannot read {path!r:.80}: {error}") from error
