# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: what the shim records about a create, and what nvct log shows of it."""

import itertools
import json
import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from nvct.cli import screen
from nvct.cli.log import text
from nvct.container import recorder
from nvct.container.decide import Decision
from nvct.container.plan.model import no_edits
from nvct.container.plan.store import Store
from nvct.container.request.model import Request
from nvct.doctor import decisions, one_container
from nvct.errors import NotPermittedError, NvctError, RequestError
from tests.support.shim_lab import Lab

VISIBLE = "NVIDIA_VISIBLE_DEVICES="
ALL = decisions.Filter()
NO_GPU = RequestError("no such GPU")


pytestmark = pytest.mark.usefixtures("driver")


def records(lab: Lab) -> list[dict[str, str]]:
    return decisions.look([str(lab.run_dir)]).records


def give(lab: Lab, *notes: str) -> None:
    """Record that a container got a GPU."""
    decision = Decision(Request(["GPU-a"], "A"))
    decision.notes = list(notes)
    store = Store(str(lab.run_dir), create=True)
    recorder.given(store, "shim", "/b", decision)
    store.close()


def refuse(lab: Lab, *bundles: str, error: NvctError = NO_GPU, **more: Any) -> None:
    """Record that creates were refused."""
    store = Store(str(lab.run_dir))
    for bundle in bundles:
        recorder.refused(store, "shim", bundle, error, **more)
    store.close()


def log(lab: Lab, *words: str) -> str:
    done = lab.invoke("nvct", "log", *words)
    assert done.exit_code == 0, done.output
    assert bool(done.stdout) is not ("nothing recorded" in done.stderr)
    return done.stdout


def test_a_node_that_devices_share_is_counted_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    decision = Decision(Request(["0", "1"], "A"))
    edits = no_edits()
    edits["nodes"].append({"path": "/dev/nvidiactl", "host": "", "node": "{}", "rule": ""})
    decision.edits = [edits, edits]
    store = Store(folder, create=True)
    recorder.given(store, "shim", "/b", decision)
    store.close()

    (record,) = decisions.look([folder]).records

    assert (record["result"], record["nodes"]) == ("1 nodes, 0 mounts", "/dev/nvidiactl")


def test_what_a_container_got_is_recorded(lab: Lab) -> None:
    lab.asks(VISIBLE + "1")
    assert lab.create().status == 0

    (record,) = records(lab)
    assert record["outcome"] == "given"
    assert record["program"] == "nvidia-container-runtime"
    assert record["bundle"] == str(lab.bundle)
    assert record["asked"] == "NVIDIA_VISIBLE_DEVICES: 1"
    assert re.fullmatch(r"\d+ nodes, \d+ mounts", record["result"])
    assert re.fullmatch(r"\d+\.\d ms", record["took"])
    steps = re.fullmatch(r"config (\S+), decide (\S+), deliver (\S+)", record["steps"])
    assert steps
    assert sum(map(float, steps.groups())) == pytest.approx(float(record["took"][:-3]), abs=0.2)
    assert log(lab).endswith(f" ({record['took']}: {record['steps']})\n")
    assert record["nodes"].split()[-1] == "/dev/nvidia1"
    assert record["plan"] == f"{lab.kept('own.plan')['made']}/580.159.04"


def test_why_the_layout_is_classic_is_told_once(lab: Lab) -> None:
    """It is this host's reason most often; --json has it in each record."""
    for layout in ("classic: no view", "classic: no view", "farm at /usr/x"):
        give(lab, f"layout {layout}", "without a hook")

    told = re.findall(r"layout .*", log(lab))
    assert told == [
        "layout classic: no view; without a hook", "layout classic, as above; without a hook",
        "layout farm at /usr/x; without a hook",
    ]  # fmt: skip
    assert log(lab, "--json").count("classic: no view; without a hook") == 2


def test_which_free_gpu_each_container_got_is_always_told(lab: Lab) -> None:
    for _ in range(2):
        give(lab, "free:1 is GPU-a", "layout classic: no view")

    told = re.findall(r"free:1.*", log(lab))
    assert told == [
        "free:1 is GPU-a; layout classic: no view",
        "free:1 is GPU-a; layout classic, as above",
    ]


def test_why_a_container_was_refused_is_recorded(lab: Lab) -> None:
    lab.asks(VISIBLE + "9")
    assert lab.create().status != 0

    (record,) = records(lab)
    assert (record["outcome"], record["code"]) == ("refused", "unknown-device")
    assert "9" in record["error"]
    assert "refused" in log(lab, "--outcome", "refused")
    assert log(lab, "--outcome", "given") == ""


def test_a_container_that_asks_for_nothing_leaves_no_record(lab: Lab) -> None:
    lab.asks("A=1")
    assert lab.create().status == 0

    assert records(lab) == []


def test_the_log_finds_a_container_by_a_part_of_its_bundle(lab: Lab) -> None:
    refuse(lab, "/run/aaa", "/run/bbb")

    assert "/run/bbb: no such GPU" in log(lab, "bbb")
    assert "aaa" not in log(lab, "bbb")
    assert [json.loads(line)["bundle"] for line in log(lab, "--json").splitlines()] == [
        "/run/aaa",
        "/run/bbb",
    ]
    assert log(lab, "--since", "0") == ""


def test_the_log_of_a_running_container_is_found_by_its_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = "ab" * 32
    running = [one_container.Found(id=id_, pid=40, labels={"container": "train"})]
    monkeypatch.setattr(one_container, "find", lambda *_words, **_more: running)
    refuse(lab, f"/run/{id_}", "/run/other")

    assert f"refused {id_[:12]}: no such GPU" in log(lab, "train")
    assert "other" not in log(lab, "train")


def test_the_files_stay_small_and_keep_the_latest(lab: Lab) -> None:
    error = RequestError("x" * 5000, hint="y" * 5000)
    refuse(lab, *(f"/run/{number}" for number in range(1000)), error=error)

    sizes = [(lab.run_dir / name).stat().st_size for name in (recorder.NAME, recorder.OLD)]
    assert max(sizes) <= recorder.LIMIT + recorder.RECORD
    assert records(lab)[-1]["bundle"] == "/run/999"
    assert len(records(lab)) > 200


def test_texts_of_an_attacker_stay_in_their_line(lab: Lab) -> None:
    refuse(lab, "/run/a", error=RequestError('"}\n{"outcome":"given"\x1b[2J'))

    assert len(records(lab)) == 1
    assert "\x1b" not in log(lab)
    assert log(lab).count("\n") == 1


def test_a_terminal_gets_lines_of_its_width_and_a_pipe_whole_ones(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(lab, "/run/a", error=RequestError("word " * 20, hint="end"))
    (whole,) = log(lab).splitlines()
    monkeypatch.setattr(screen, "columns", lambda: 60)

    lines = log(lab).splitlines()

    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("    word")
    assert " ".join(line.strip() for line in lines).split() == whole.split()


def test_damaged_lines_are_left_out(lab: Lab) -> None:
    refuse(lab, "/run/a")
    with open(lab.run_dir / recorder.NAME, "a", encoding="utf-8") as file:
        file.write(
            '{"time":"x"}\nnot json\n[]\n{"time":"1","bundle":2,"outcome":"","program":""}\n'
        )
        for when in ("nan", "inf", "-1", "1e300"):
            file.write(f'{{"time":"{when}","bundle":"/b","outcome":"given","program":"p"}}\n')
        file.write("[" * 100_000 + '\n{"ti')

    assert len(records(lab)) == 1


def test_following_shows_what_is_new(lab: Lab) -> None:
    store = Store(str(lab.run_dir))
    recorder.refused(store, "shim", "/run/a", RequestError("x"))

    def wait(_seconds: float) -> bool:
        recorder.refused(store, "shim", "/run/b", RequestError("x"))
        return False

    found = list(itertools.islice(decisions.follow([str(lab.run_dir)], ALL, wait), 2))
    store.close()

    assert [record["bundle"] for record in found] == ["/run/a", "/run/b"]


def test_following_loses_and_repeats_nothing_while_the_files_change_places(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(lab.run_dir))
    total = 6 * recorder.LIMIT // 500
    written = iter(range(total))
    read_file = decisions._read_file

    def write(number: int = 40) -> None:
        for n in itertools.islice(written, number):
            recorder.refused(store, "shim", f"/run/{n}", RequestError("x" * 400))

    def read(folder: decisions.Ring, name: str) -> None:
        write()  # between the readings of the two files, too
        read_file(folder, name)

    def wait(_seconds: float) -> bool:
        write()
        return False

    monkeypatch.setattr(decisions, "_read_file", read)
    found = list(itertools.islice(decisions.follow([str(lab.run_dir)], ALL, wait), total))
    store.close()

    assert sorted(int(one["bundle"].removeprefix("/run/")) for one in found) == [*range(total)]


def test_the_agents_records_are_among_the_others(lab: Lab, tmp_path: Path) -> None:
    store, agent = Store(str(lab.run_dir)), Store(str(tmp_path), forbidden=0)
    recorder.refused(store, "shim", "/run/a", RequestError("x"))
    time.sleep(0.002)
    recorder.decided(agent, "dra", "ns/claim", {"outcome": "changed", "result": "it is free"})
    time.sleep(0.002)
    recorder.refused(store, "shim", "/run/b", RequestError("x"))
    places = [str(lab.run_dir), str(tmp_path)]

    found = decisions.look(places).records

    assert [decisions.subject(one) for one in found] == ["/run/a", "ns/claim", "/run/b"]
    assert text(found[1]).endswith("changed ns/claim: it is free")
    assert decisions.look(places, decisions.Filter(outcome="changed")).records == found[1:2]
    os.unlink(tmp_path / recorder.NAME)
    os.mkfifo(tmp_path / recorder.NAME)
    assert decisions.look(places).records == [found[0], found[2]]


def test_a_request_that_json_makes_long_is_recorded(lab: Lab) -> None:
    long = "\U0001f600" * 5000
    request = Request([long], long)
    request.capabilities = [long]
    request.extras.imex = [1]
    decision = Decision(request)
    decision.notes = [long]
    decision.edits = [{**no_edits(), "nodes": [{"path": f"/dev/nvidia{long}"}]}]  # type: ignore[typeddict-item]
    error = RequestError(long, hint="\x00" * 400)
    refuse(lab, "/run/a", error=error, times=[0.0, 0.0, 0.0, 0.0], decision=decision)

    (record,) = records(lab)
    assert record["bundle"] == "/run/a"
    assert (lab.run_dir / recorder.NAME).stat().st_size <= recorder.RECORD


def test_a_file_that_another_process_has_renamed_is_not_renamed_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run_dir.mkdir(mode=0o700, exist_ok=True)
    (lab.run_dir / recorder.OLD).write_text("history")
    (lab.run_dir / recorder.NAME).write_text(" " * recorder.LIMIT)
    monkeypatch.setattr(recorder, "_inode", lambda _store: 0)

    refuse(lab, "/run/a")

    assert (lab.run_dir / recorder.OLD).read_text() == "history"


def test_creates_at_the_same_time_lose_no_older_half(lab: Lab) -> None:
    lab.run_dir.mkdir(mode=0o700, exist_ok=True)

    def write() -> None:
        store = Store(str(lab.run_dir))
        for _ in range(500):
            recorder.refused(store, "p", "/b", RequestError("x" * 300))

    writers = [multiprocessing.get_context("fork").Process(target=write) for _ in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert (lab.run_dir / recorder.OLD).stat().st_size > recorder.LIMIT
    assert all(record["outcome"] == "refused" for record in records(lab))


@pytest.mark.parametrize(
    ("program", "folder", "is_shown"),
    [
        ("nvct-nri", "agent", False), ("nvct-nri", "nri", True), ("nvct-nri", "other", True),
        ("nvidia-container-runtime", "agent", False), ("nvidia-container-runtime", "nri", False),
        ("dra", "agent", True), ("dra", "nri", False),
    ],
)  # fmt: skip
def test_the_folder_decides_the_program(
    program: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    """Who can write the agent's folder cannot speak for another program."""
    monkeypatch.setattr(decisions, "AGENT_DIR", str(tmp_path / "agent"))
    monkeypatch.setattr(decisions, "NRI_DIR", str(tmp_path / "nri"))
    (tmp_path / folder).mkdir(mode=0o700)
    record = {"time": "1.0", "program": program, "about": "a/b/c", "outcome": "given"}
    (tmp_path / folder / "decisions.jsonl").write_text(json.dumps(record) + "\n")
    log = decisions.look([str(tmp_path / folder)], decisions.Filter())
    assert [each["program"] for each in log.records] == ([program] if is_shown else [])
    assert bool(log.problems) != is_shown


def test_a_command_for_a_container_is_found_by_its_id(lab: Lab) -> None:
    id_ = "0123456789abcdef" * 4
    error = NotPermittedError("exec would add CAP_SYS_ADMIN")
    refuse(lab, f"/run/{id_}", error=error, command="exec")
    (record,) = records(lab)
    assert decisions.container_of(record) == id_
    assert " refused 0123456789ab: exec would add CAP_SYS_ADMIN" in log(lab, id_)
