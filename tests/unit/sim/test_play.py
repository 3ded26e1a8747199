# SPDX-License-Identifier: Apache-2.0
"""Scripts of changes: what they do at which time, and that a wrong one changes nothing."""

import re
from pathlib import Path

import pytest

from nvct.errors import DocumentError
from nvct_sim import node_changes, play, tree

SCRIPT = """
[[step]]
at = 10
over = 2
gpu = 0
set = {temp = 90}

[[step]]
at = 0
gpu = 0
set = {temp = 50, throttle = "hw-thermal"}

[[step]]
at = 11.2
do = "xid 1 79 gi=7"
"""
AS_YAML = """
step:
- {at: 10, over: 2, gpu: 0, set: {temp: 90}}
- {at: 0, gpu: 0, set: {temp: 50, throttle: hw-thermal}}
- {at: 11.2, do: "xid 1 79 gi=7"}
"""


def write(tmp_path: Path, text: str, name: str = "script.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("a.toml", SCRIPT), ("a.yaml", AS_YAML)])
def test_changes_come_at_their_times(
    name: str, text: str, tmp_path: Path, plain_node: tree.Node
) -> None:
    steps = play.read(write(tmp_path, text, name))
    play.check(plain_node, steps)
    now: list[float] = [0.0]
    seen: list[tuple[float, str]] = []
    told: list[str] = []

    def sleep(seconds: float) -> None:
        seen.append((now[0], plain_node.state().gpu(0).fields["temp"]))
        now[0] += seconds

    play.play(plain_node, steps, told.append, speed=2, sleep=sleep, clock=lambda: now[0])

    temperatures = [(round(2 * at, 1), value) for at, value in seen]
    assert temperatures == [(0, "50"), (10, "50"), (10.5, "60"), (11, "70"), (11.2, "70"),
                            (11.5, "80")]  # fmt: skip
    assert plain_node.state().gpu(0).fields["temp"] == "90"
    (event,) = plain_node.state().find("event", gpu=1, data=79)
    assert event.fields["gi"] == "7"
    assert [line.split(" s  ")[1] for line in told] == [
        "gpu 0 temp=50 throttle=hw-thermal", "gpu 0 temp=90 over 2 s", "xid 1 79 gi=7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[step]", "is not TOML"),
        ("", "is not a script"),
        ("step = 1", "is not a list of tables"),
        ("name = 'x'\n[[step]]\nat = 1\ndo = 'reload'", "is not a script"),
        ("[[step]]\ndo = 'reload'", "at must be a number of seconds"),
        ("[[step]]\nat = -1\ndo = 'reload'", "at must be a number of seconds"),
        ("[[step]]\nat = true\ndo = 'reload'", "at must be a number of seconds"),
        ("[[step]]\nat = 1\nwhen = 2\ndo = 'reload'", "unknown key 'when'"),
        ("[[step]]\nat = 1", "neither do nor gpu with set"),
        ("[[step]]\nat = 1\ngpu = 0\nset = {}", "neither do nor gpu with set"),
        ("[[step]]\nat = 1\ngpu = '0'\nset = {temp = 1}", "neither do nor gpu with set"),
        ("[[step]]\nat = 1\ngpu = 0\nset = {heat = 1}", "a GPU has no field 'heat'"),
        ("[[step]]\nat = 1\ngpu = 0\nset = {temp = 1.5}", "temp must be a number or a word"),
        ("[[step]]\nat = 1\ngpu = 0\nset = {util = 200}", "util=200 is too large"),
        (
            "[[step]]\nat = 1\ngpu = 0\nover = 5\nset = {recovery = 'reset'}",
            "cannot change linearly",
        ),
        ("[[step]]\nat = 1\ndo = 'explode 0'", "unknown change 'explode'"),
        ("[[step]]\nat = 1\ndo = 'xid 0'", "wrong arguments for xid"),
        ("[[step]]\nat = 1\ngpu = 0\ndo = 'lose 0'", "do must be a text, without keys except at"),
    ],
)
def test_a_wrong_script_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)

    with pytest.raises(DocumentError, match=re.escape(message)) as raised:
        play.read(path)

    assert str(path) in raised.value.message


def test_a_key_that_a_yaml_script_has_twice_is_refused(tmp_path: Path) -> None:
    text = "step:\n- at: 1\n  gpu: 0\n  gpu: 1\n  set: {temp: 9}\n"

    with pytest.raises(DocumentError, match="key 'gpu' already set in map"):
        play.read(write(tmp_path, text, "a.yaml"))


def test_a_script_for_another_node_is_refused(tmp_path: Path, plain_node: tree.Node) -> None:
    steps = play.read(write(tmp_path, "[[step]]\nat = 0\ngpu = 77\nset = {temp = 1}"))

    with pytest.raises(DocumentError, match="no GPU 77"):
        play.check(plain_node, steps)


def test_every_change_can_be_in_a_script() -> None:
    for name, (usage, _) in node_changes.CHANGES.items():
        node_changes.check(name, usage.split())
