# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: a line for each decision about a GPU request, for `nvct log`.

Hot. The records are in the run directory, two files of at most LIMIT bytes, the older one with the
name OLD; the agent has a folder of its own. Contract: a record is one write of at most RECORD
bytes; if that fails, the record is lost, and no container fails or waits because of it. Of an
image's variables, a record has only the request.
"""

from __future__ import annotations

import posix
import time

from nvct.container.request.model import BY_ENGINE
from nvct.oci.jsontext import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.container.decide import Decision
    from nvct.container.plan.store import Store
    from nvct.container.request.origin import RuleResult
    from nvct.errors import NvctError

NAME, OLD = "decisions.jsonl", "decisions.old.jsonl"
LIMIT = 256 << 10
RECORD, TEXT, ASKED = 4096, 400, 1000
"""Bytes of a record, characters of a text in it, and of a request: one may name 16 UUIDs."""
LONG_TEXTS = ("asked", "capabilities", "error", "hint", "nodes", "notes", "policy")
SHORT = 33
"""Characters of LONG_TEXTS, if the record is too long: JSON takes up to 12 bytes for each."""
CUT = "..."  # The end of a text that is longer
FLAGS = (
    posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW
    | posix.O_NONBLOCK
)  # fmt: skip
"""No link is followed, and a FIFO without a reader is an error instead of a wait."""
S_IFMT, S_IFREG = 0o170000, 0o100000
STEPS = ("config", "decide", "deliver")
"""Reading config.toml, deciding, and changing config.json, the root or the live container."""
EXTRAS = ("gds", "mofed", "gdrcopy", "nvswitch", "imex", "mig_config", "mig_monitor")
NVIDIA = "/dev/nvidia"  # Of other nodes (DRM has six for each GPU) only the number is recorded
USERS_FOLDERS = "/run/user"


def given(
    store: Store, program: str, bundle: str, decision: Decision, times: Sequence[float] = ()
) -> None:
    """Record what a container got for its GPU request, or why the request was ignored.

    `times` are the program's start and the end of each of STEPS, in seconds of CLOCK_MONOTONIC.
    """
    fields = {"outcome": "given" if decision.gives else "ignored", **_about(decision)}
    _append(store, program, ("bundle", bundle), fields, times)


def refused(
    store: Store,
    program: str,
    bundle: str,
    error: NvctError,
    *,
    times: Sequence[float] = (),
    decision: Decision | None = None,
    command: str = "",
) -> None:
    """Record why a container was refused, or a command for one that runs, such as exec.

    `times` are as in `given`; the step that failed has no end.
    """
    subject = ("about", f"{command} {bundle}") if command else ("bundle", bundle)
    fields = {"outcome": "refused", "error": error.message, "code": error.code}
    if error.hint:
        fields["hint"] = error.hint
    if decision is not None:
        fields |= _about(decision)
    _append(store, program, subject, fields, times)


def decided(store: Store, program: str, about: str, fields: Mapping[str, str]) -> None:
    """Record a decision of the agent about a resource, a claim or a device."""
    _append(store, program, ("about", about), fields)


def folder_of_hook(run_dir: str, users: str = USERS_FOLDERS, root: str = "/") -> str:
    """Return the folder for the records of a hook, which must not trust its environment.

    A rootless engine starts it as root of a user namespace, where `/` belongs to another user.
    The folder is then nvct in the user's runtime directory, which is found by its owner.
    """
    own = posix.geteuid()
    try:
        if posix.stat(root).st_uid != own:
            for name in posix.listdir(users):
                if posix.lstat(f"{users}/{name}").st_uid == own:
                    return f"{users}/{name}/nvct"
    except OSError:
        pass
    return run_dir


def _about(decision: Decision) -> dict[str, str]:
    """Return the fields about a request, the policy's rules and what the container gets."""
    request, origin, fields = decision.request, decision.origin, {}
    if request is None and decision.engine:
        fields["asked"] = f"{BY_ENGINE}: {', '.join(decision.engine)}"
    if request is not None:
        fields["asked"] = f"{request.source}: {request.asked}"
        fields["mode"] = request.mode
        if request.capabilities is not None:
            fields["capabilities"] = ",".join(request.capabilities)
        if request.extras:
            fields["besides"] = ",".join([n for n in EXTRAS if getattr(request.extras, n)])
        if request.plans:
            fields["plan"] = " ".join(request.plans)
    if decision.edits and decision.error is None:
        every = [node["path"] for edit in decision.edits for node in edit["nodes"]]
        nodes = dict.fromkeys(every)  # devices share some
        mounts = sum([len(edit["mounts"]) for edit in decision.edits])
        fields["result"] = f"{len(nodes)} nodes, {mounts} mounts"
        fields["nodes"] = " ".join([path for path in nodes if path.startswith(NVIDIA)])
    if origin is not None and origin.results:
        fields["policy"] = "; ".join([_rule(one) for one in origin.results])
    if decision.notes:
        fields["notes"] = "; ".join(decision.notes)
    return fields


def _rule(result: RuleResult) -> str:
    verdict = "decides" if result.holds else "does not hold"
    return f"{result.rule!r} ({result.then}) {verdict}: {result.why}"


def _append(
    store: Store,
    program: str,
    subject: tuple[str, str],
    fields: Mapping[str, str],
    times: Sequence[float] = (),
) -> None:
    if store.fd < 0:
        return
    head = {"time": f"{time.time():.3f}", "program": program, subject[0]: subject[1] or "."}
    fields = {**head, **fields}
    if times:
        fields |= _durations(times, time.monotonic())
    line = _line(fields, TEXT)
    if len(line) > RECORD:
        line = _line(fields, SHORT)
    if len(line) > RECORD:
        store.reason = f"{store.path}/{NAME}: a record is too long"
        return
    try:
        fd = posix.open(NAME, FLAGS, 0o600, dir_fd=store.fd)
        try:
            status = posix.fstat(fd)
            if status.st_mode & S_IFMT != S_IFREG or status.st_nlink > 1:
                store.reason = f"{store.path}/{NAME} is not a regular file with one name"
                return
            posix.write(fd, line)
            if status.st_size + len(line) > LIMIT:
                _rotate(store, fd)
        finally:
            posix.close(fd)
    except OSError as error:
        store.reason = f"{store.path}/{NAME}: {error.strerror}"


def _durations(times: Sequence[float], now: float) -> dict[str, str]:
    took = {"took": f"{(now - times[0]) * 1000:.1f} ms"}
    if len(times) == 1:  # of a hook, which has no steps, or of a failure before the first one
        return took
    ends = [*times[1:], now]
    steps = [
        f"{step} {(end - start) * 1000:.1f}"
        for step, start, end in zip(STEPS, times, ends, strict=False)
    ]
    return {**took, "steps": ", ".join(steps)}


def _rotate(store: Store, fd: int) -> None:
    """Rename a full file to OLD, unless another process does or did so.

    Without the lock, a late process would rename the new file, which is almost empty.
    """
    try:
        posix.lockf(fd, posix.F_TLOCK, 0)
    except BlockingIOError:
        return
    if _inode(store) == posix.fstat(fd).st_ino:
        posix.rename(NAME, OLD, src_dir_fd=store.fd, dst_dir_fd=store.fd)


def _inode(store: Store) -> int:
    return posix.stat(NAME, dir_fd=store.fd, follow_symlinks=False).st_ino


def _line(fields: Mapping[str, str], limit: int) -> bytes:
    pairs = [f"{quote(key)}:{quote(_cut(key, value, limit))}" for key, value in fields.items()]
    return f"{{{','.join(pairs)}}}\n".encode()


def _cut(key: str, value: str, limit: int) -> str:
    if limit == SHORT and key not in LONG_TEXTS:
        limit = TEXT
    elif limit == TEXT and key == "asked":
        limit = ASKED
    return value if len(value) <= limit else value[:limit] + CUT
