# SPDX-License-Identifier: Apache-2.0
"""Reports the result of a create: on stderr, in the runtime's log and in the shim's log.

Hot, but loaded only to report. Engines show the last entry of the file in --log; containerd
reads the entry as JSON. Formats: runc 1.1 (logrus), `{"level": ..., "msg": ..., "time": ...}`. The
shim's log is the file in nvidia-container-runtime.debug, as the incumbent's (v1.20).
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

LEVELS = ("info", "debug", "trace")  # decisions are logged at these; errors always
LIMIT = 2000  # characters of a log entry


def report(program: str, error: NvctError, said: Invocation, logs: list[str]) -> None:
    """Write the error as one line to stderr and to the logs; empty log names are skipped."""
    text = line(program, error)
    _write(2, text + "\n")
    for log in dict.fromkeys(logs):
        if log:
            _append(log, "error", text, said.log_format)


def report_crash(
    program: str, error: Exception, said: Invocation, logs: list[str], *, debug: bool
) -> None:
    """Report an unexpected exception; with its traceback if `debug` is true (NVCT_DEBUG)."""
    report(program, unexpected(error), said, logs)
    if debug:
        import traceback  # loaded only after a bug

        _write(2, "".join(traceback.format_exception(error)))


def note(
    program: str,
    config: Config,
    said: Invocation,
    decision: Decision,
) -> None:
    """Append one line about the decision of a create to the shim's log."""
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
    if colon and kind in ("file", "journald", "syslog"):  # log drivers of crun
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
