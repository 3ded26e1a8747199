# SPDX-License-Identifier: Apache-2.0
import json
import os
import re
from pathlib import Path

import pytest

from nvct.container.shim import log
from nvct.errors import HostError
from nvct.oci import argv

ERROR = HostError('a "quoted" \\ path\nwith a line break \u20ac', hint="do it")
LINE = 'p: a "quoted" \\ path\\nwith a line break \u20ac; do it [host]'


def report(*flags: str) -> None:
    invocation = argv.parse([*flags, "create", "x"])
    log.report("p", ERROR, invocation, [invocation.log])


def test_stderr_gets_the_line(capfd: pytest.CaptureFixture[str]) -> None:
    report()

    assert capfd.readouterr() == ("", LINE + "\n")


def test_a_json_entry_is_appended_to_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{"level":"info"}\n')

    report("--log", str(path), "--log-format=json")

    first, second, remainder = path.read_text().split("\n")
    assert (first, remainder) == ('{"level":"info"}', "")
    entry = json.loads(second)
    assert (entry["level"], entry["msg"]) == ("error", LINE)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["time"])


@pytest.mark.parametrize("flags", [[], ["--log-format", "text"], ["--log-format=odd"]])
def test_the_log_gets_a_text_entry_unless_its_format_is_json(
    flags: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "log"

    report(f"--log={path}", *flags)

    pattern = r'time="\d{4}-[^"]+Z" level=error msg="(.*)"\n'
    match = re.fullmatch(pattern, path.read_text())
    assert match
    assert json.loads(f'"{match[1]}"') == LINE


def test_a_log_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report(f"--log={tmp_path}/no/such/folder")

    assert capfd.readouterr().err == LINE + "\n"


@pytest.mark.parametrize("kind", ["journald:x", "syslog:x"])
def test_log_drivers_other_than_file_are_left_to_the_runtime(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    report(f"--log={kind}")

    assert list(tmp_path.iterdir()) == []


def test_a_bug_shows_its_traceback_only_with_nvct_debug(capfd: pytest.CaptureFixture[str]) -> None:
    invocation = argv.parse(["create", "x"])
    text = "p: unexpected ValueError: odd; please report it; NVCT_DEBUG=1 shows more [bug]\n"

    log.report("p", ValueError("odd"), invocation, [""])
    plain = capfd.readouterr().err
    log.report("p", ValueError("odd"), invocation, [""], debug=True)

    assert plain == text
    assert capfd.readouterr().err == text + "ValueError: odd\n"


def test_an_error_is_in_both_logs_and_only_once_if_they_are_the_same_file(tmp_path: Path) -> None:
    first, second = f"{tmp_path}/a", f"{tmp_path}/b"

    log.report("p", ERROR, argv.parse(["create"]), [first, second, first, ""])

    assert [(tmp_path / name).read_text().count("\n") for name in "ab"] == [1, 1]


@pytest.mark.parametrize(
    "form", ["link", "link to nothing", "FIFO", "read FIFO", "device", "folder"]
)
@pytest.mark.parametrize("option", ["runc's log", "the shim's log"])
def test_only_a_regular_file_is_a_log(
    form: str, option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, victim = tmp_path / "log", tmp_path / "victim"
    reader = -1
    if form == "link":
        victim.write_text("")
    if form.startswith("link"):
        path.symlink_to(victim)
    elif form.endswith("FIFO"):
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if form == "read FIFO" else -1
    elif form == "device":
        path = Path("/dev/full")
    else:
        path.mkdir()
    invocation = argv.parse([f"--log={path}", "create", "x"])

    log.report(
        "p", ERROR, invocation, [invocation.log] if option == "runc's log" else ["", str(path)]
    )

    assert capfd.readouterr().err == LINE + "\n"
    assert victim.exists() == (form == "link")
    assert not victim.exists() or victim.read_text() == ""
    if reader >= 0:
        assert os.read(reader, 100) == b""
        os.close(reader)
