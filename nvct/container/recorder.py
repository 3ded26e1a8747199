# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: a line for each GPU request that was met or refused, for `nvct log`.

Hot. The records are in the run directory, two files of at most LIMIT bytes, the older one with the
name OLD; the agent has a folder of its own. Contract: a record is one write of at most RECORD
bytes; what cannot be written is lost, and no container fails because of it. A record has no value
of an image's variable but the request.
"""

from __future__ import annotations

import posix
import time

from nvct.oci.jsontext import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.container.decide import Decision
    from nvct.container.plan.store import Store
    from nvct.errors import NvctError

NAME, OLD = "decisions.jsonl", "decisions.old.jsonl"
LIMIT = 256 << 10
RECORD, TEXT = 2048, 400
LONGER = 12
"""The most bytes that one character takes in ASCII JSON: a surrogate pair of escapes."""
FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW


def given(store: Store, program: str, bundle: str, decision: Decision, began: float = 0.0) -> None:
    """Record what a container got that asked for a GPU, or why its request is ignored.

    `began` is when the program began by CLOCK_MONOTONIC, 0 if that is not to be recorded.
    """
    request = decision.request
    fields = {"outcome": "given" if request else "ignored"}
    if request is not None:
        nodes = sum([len(edit["nodes"]) for edit in decision.edits])
        mounts = sum([len(edit["mounts"]) for edit in decision.edits])
        fields["asked"] = f"{request.source}: {', '.join(request.ids) or 'the driver alone'}"
        fields["mode"] = request.mode
        fields["result"] = f"{nodes} nodes, {mounts} mounts"
    if decision.notes:
        fields["notes"] = "; ".join(decision.notes)
    _append(store, program, ("bundle", bundle), fields, began)


def refused(store: Store, program: str, bundle: str, error: NvctError, began: float = 0.0) -> None:
    """Record why a container was refused; `began` as in `given`."""
    fields = {"outcome": "refused", "error": error.message, "code": error.code}
    if error.hint:
        fields["hint"] = error.hint
    _append(store, program, ("bundle", bundle), fields, began)


def decided(store: Store, program: str, about: str, fields: Mapping[str, str]) -> None:
    """Record a decision of the agent about a resource, a claim or a device."""
    _append(store, program, ("about", about), fields)


def _append(
    store: Store,
    program: str,
    subject: tuple[str, str],
    fields: Mapping[str, str],
    began: float = 0.0,
) -> None:
    if store.fd < 0:
        return
    head = {"time": f"{time.time():.3f}", "program": program, subject[0]: subject[1] or "."}
    fields = {**head, **fields}
    if began:
        fields["took"] = f"{(time.monotonic() - began) * 1000:.1f} ms"
    line = _line(fields, TEXT)
    if len(line) > RECORD:
        line = _line(fields, TEXT // LONGER)
    try:
        fd = posix.open(NAME, FLAGS, 0o600, dir_fd=store.fd)
        try:
            posix.write(fd, line)
            if posix.fstat(fd).st_size > LIMIT:
                _rotate(store, fd)
        finally:
            posix.close(fd)
    except OSError as error:
        store.reason = f"{store.path}/{NAME}: {error.strerror}"


def _rotate(store: Store, fd: int) -> None:
    """Make a full file the old one, unless another process does or did so.

    Without the lock, one that is late would put the new file, which is almost empty, in the place
    of the old one.
    """
    try:
        posix.lockf(fd, posix.F_TLOCK, 0)
    except BlockingIOError:
        return
    if _inode(store) == posix.fstat(fd).st_ino:
        posix.rename(NAME, OLD, src_dir_fd=store.fd, dst_dir_fd=store.fd)


def _line(fields: Mapping[str, str], limit: int) -> bytes:
    pairs = [f"{quote(key)}:{quote(value[:limit])}" for key, value in fields.items()]
    return f"{{{','.join(pairs)}}}\n".encode()


def _inode(store: Store) -> int:
    return posix.stat(NAME, dir_fd=store.fd, follow_symlinks=False).st_ino
