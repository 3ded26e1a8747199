# SPDX-License-Identifier: Apache-2.0
"""How the plugin connects again after an engine has gone."""

import socket
import sys
import threading

import pytest

from nvct.config.model import Config
from nvct.errors import HostError
from nvct.nri import nri_pb2 as api
from nvct.nri import start
from nvct.nri.main import LONGEST_S, connect_to, serve, serve_always
from nvct.nri.plugin import Options, Plugin
from tests.unit.nri.fake_engine import FakeEngine


class EnoughError(Exception):
    """The test has seen enough."""


def plugin_of(said: list[str]) -> Plugin:
    options = Options(record="/dev/null/nvct-nri")  # which cannot be made
    return Plugin(lambda: (Config(), None), "/nonexistent", options, said.append)


@pytest.mark.parametrize("synchronizes", [False, True])
def test_an_engine_that_ends_while_it_synchronizes_is_left_alone_ever_longer(
    *, synchronizes: bool
) -> None:
    said, slept, tries = list[str](), list[float](), iter(range(12))
    plugin = plugin_of(said)

    def engine(ours: socket.socket) -> None:
        with ours:
            fake = FakeEngine(ours)
            if synchronizes:
                fake.start()
                return
            fake.answer_registration(api.Answer())
            configure = api.ConfigureRequest(runtime_name="containerd", runtime_version="2.2.2")
            fake.ask("Configure", configure, api.ConfigureResponse)  # and then it panics

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        threading.Thread(target=engine, args=(ours,)).start()
        return theirs

    def once() -> None:
        if next(tries, None) is None:
            raise EnoughError
        serve(connect, plugin, "10", "nvct")

    with pytest.raises(EnoughError):
        serve_always(once, plugin, slept.append)
    lost = [line for line in said if "while it listed its containers" in line]
    if synchronizes:
        assert (slept, lost) == ([], [])
    else:
        assert slept[:4] == [4.0, 8.0, 16.0, 32.0]
        assert slept[-1] == LONGEST_S
        assert len(lost) == 12
        assert "(failure 12 in a row)" in lost[-1]
        assert lost[-1].endswith("no rule applies until it is connected; it tries again in 300 s")


def test_an_engine_that_is_down_is_tried_again_soon() -> None:
    said, slept = list[str](), list[float]()

    def once() -> None:
        if len(slept) == 3:
            raise EnoughError
        raise HostError("no engine answers")

    with pytest.raises(EnoughError):
        serve_always(once, plugin_of(said), slept.append)
    assert slept == [2.0, 2.0, 2.0]
    (line,) = [line for line in said if "no engine answers" in line]
    assert line.endswith("it tries again every 2 s")


def test_a_program_without_protobuf_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip installs nvct without it."""
    for name in [each for each in sys.modules if each.startswith(("google", "nvct.nri."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google", None)
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nvct-nri: Python has no module google")
    assert "pip install '.[agent]'" in line


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(13, "Permission denied"), "as root"),
        (FileNotFoundError(2, "x"), "is NRI enabled"),
    ],
)
def test_a_socket_that_cannot_be_opened_is_told_with_its_mend(
    error: OSError, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "connect", fails)
    with pytest.raises(HostError) as caught:
        connect_to("/nonexistent")
    assert hint in caught.value.hint
