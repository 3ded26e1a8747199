# SPDX-License-Identifier: Apache-2.0
"""How the plugin connects again after an engine has gone."""

from __future__ import annotations

import socket
import threading

import pytest

from nvct.config.model import Config
from nvct.errors import HostError
from nvct.nri import nri_pb2 as api
from nvct.nri.main import LONGEST_S, serve, serve_always
from nvct.nri.plugin import Options, Plugin
from tests.unit.nri.fake_engine import FakeEngine


class EnoughError(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize("synchronizes", [False, True])
def test_an_engine_that_ends_while_it_synchronizes_is_left_alone_ever_longer(
    *, synchronizes: bool
) -> None:
    said: list[str] = []
    slept: list[float] = []
    tries = 0
    options = Options(record="/dev/null/nvct-nri")  # which cannot be made
    plugin = Plugin(lambda: (Config(), None), "/nonexistent", options, said.append)

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(10)

        def engine() -> None:
            with ours:
                if synchronizes:
                    FakeEngine(ours).start()
                    return
                fake = FakeEngine(ours)
                fake.answer_registration(api.Answer())
                configure = api.ConfigureRequest(
                    runtime_name="containerd", runtime_version="2.2.2"
                )
                fake.ask("Configure", configure, api.ConfigureResponse)  # and then it panics

        threading.Thread(target=engine).start()
        return theirs

    def once() -> None:
        nonlocal tries
        tries += 1
        if tries > 12:
            raise EnoughError
        serve(connect, plugin, "10", "nvct")

    with pytest.raises(EnoughError):
        serve_always(once, plugin, slept.append)
    lost = [line for line in said if "while it told its containers" in line]
    if synchronizes:
        assert (slept, lost) == ([], [])
    else:
        assert slept[:4] == [4.0, 8.0, 16.0, 32.0]
        assert slept[-1] == LONGEST_S
        assert len(lost) == 12
        assert "12 in a row" in lost[-1]
        assert lost[-1].endswith("no rule holds until it is connected; tried again in 300 s")


def test_an_engine_that_is_down_is_tried_again_soon() -> None:
    slept: list[float] = []
    said: list[str] = []
    options = Options(record="/dev/null/nvct-nri")
    plugin = Plugin(lambda: (Config(), None), "/nonexistent", options, said.append)

    def once() -> None:
        if len(slept) == 3:
            raise EnoughError
        raise HostError("no engine answers")

    with pytest.raises(EnoughError):
        serve_always(once, plugin, slept.append)
    assert slept == [2.0, 2.0, 2.0]
    assert len([line for line in said if "no engine answers" in line]) == 1
