# SPDX-License-Identifier: Apache-2.0
"""How the shim says what a create came to: on stderr, in the runtime's log and in its own.

Hot, but on the way out. Engines show the last entry of the file that --log names; containerd
reads it as JSON. Formats: runc 1.1 (logrus), `{"level": ..., "msg": ..., "time": ...}`. The shim's
own log is the file that nvidia-container-runtime.debug names, as the incumbent's (v1.20).
"""

from __future__ import annotations

import posix
import time

from nvct.errors import DocumentError, line, unexpected
from nvct.linux.files import open_log
from nvct.oci.jsontext import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.container.decide import Decision
    from nvct.errors import NvctError
    from nvct.oci.argv import Invocation

LEVELS = ("info", "debug", "trace")  # at which decisions are logged; errors are always
LIMIT = 2000  # characters of a decision


def report(program: str, error: NvctError, said: Invocation, logs: list[str]) -> None:
    """Write the error's one line to stderr and to the logs; an empty name is none."""
    text = line(program, error)
    _write(2, text + "\n")
    for log in dict.fromkeys(logs):
        if log:
            _append(log, "error", text, said.log_format)


def report_crash(
    program: str, error: Exception, said: Invocation, logs: list[str], *, debug: bool
) -> None:
    """Report what nobody expected; with NVCT_DEBUG set, with its traceback."""
    report(program, unexpected(error), said, logs)
    if debug:
        import traceback  # on the way out of a bug only

        _write(2, "".join(traceback.format_exception(error)))


def note(
    program: str,
    config: Config,
    said: Invocation,
    decision: Decision,
) -> None:
    """Append one line about what a create decided to the shim's own log."""
    request, edits = decision.request, decision.edits
    if config.log_level not in LEVELS and not said.debug:
        return
    if request is None:
        what = "asks for no GPU"
    else:
        nodes = sum([len(edit["nodes"]) for edit in edits])
        mounts = sum([len(edit["mounts"]) for edit in edits])
        hooks = sum([len(kind) for edit in edits for kind in edit["hooks"].values()])
        hooks += len([edit for edit in edits if "hook" in edit])
        what = (
            f"{request.source} asks for {', '.join(request.ids) or 'the driver alone'}; mode"
            f" {request.mode}: {nodes} nodes, {mounts} mounts, {hooks} hooks"
        )
    text = "; ".join(
        [f"{program}: {said.command} of {said.bundle or '.'}: {what}", *decision.notes]
    )
    for warning in config.warnings:
        _append(config.debug, "warning", warning[:LIMIT], said.log_format)
    _append(config.debug, "info", text[:LIMIT], said.log_format)


def _append(log: str, level: str, text: str, log_format: str) -> None:
    """Append one entry; a log that cannot be written must not hide the error."""
    kind, colon, rest = log.partition(":")
    if colon and kind in ("file", "journald", "syslog"):  # crun's backends
        if kind != "file":
            return
        log = rest
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if log_format == "json":
        entry = f'{{"level":"{level}","msg":{quote(text)},"time":"{stamp}"}}\n'
    else:
        entry = f'time="{stamp}" level={level} msg={quote(text)}\n'
    try:
        fd = open_log(log)
    except (OSError, DocumentError):
        return
    _write(fd, entry)
    posix.close(fd)


def _write(fd: int, text: str) -> None:
    try:
        posix.write(fd, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
