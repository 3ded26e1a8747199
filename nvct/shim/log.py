# SPDX-License-Identifier: Apache-2.0
"""How the shim says that a create failed: on stderr and in the low-level runtime's own log.

Hot, but on the way out. Engines show the last entry of the file that --log names; containerd
reads it as JSON. Formats: runc 1.1 (logrus), `{"level": ..., "msg": ..., "time": ...}`.
"""

from __future__ import annotations

import posix
import time

from nvct.errors import line, unexpected
from nvct.oci.jsontext import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.errors import NvctError
    from nvct.oci.argv import Invocation


def report(program: str, error: NvctError, said: Invocation) -> None:
    """Write the error's one line to stderr and to the log that the command line names."""
    text = line(program, error)
    _write(2, text + "\n")
    if said.log:
        _append(said.log, text, said.log_format)


def report_crash(program: str, error: Exception, said: Invocation, *, debug: bool) -> None:
    """Report what nobody expected; with NVCT_DEBUG set, with its traceback."""
    report(program, unexpected(error), said)
    if debug:
        import traceback  # on the way out of a bug only

        _write(2, "".join(traceback.format_exception(error)))


def _append(log: str, text: str, log_format: str) -> None:
    """Append one entry; a log that cannot be written must not hide the error."""
    kind, colon, rest = log.partition(":")
    if colon and kind in ("file", "journald", "syslog"):  # crun's backends
        if kind != "file":
            return
        log = rest
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if log_format == "json":
        entry = f'{{"level":"error","msg":{quote(text)},"time":"{stamp}"}}\n'
    else:
        entry = f'time="{stamp}" level=error msg={quote(text)}\n'
    try:
        fd = posix.open(
            log, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC, 0o644
        )
    except OSError:
        return
    _write(fd, entry)
    posix.close(fd)


def _write(fd: int, text: str) -> None:
    try:
        posix.write(fd, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
