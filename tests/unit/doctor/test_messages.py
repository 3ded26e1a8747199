# SPDX-License-Identifier: Apache-2.0
"""The catalogue of messages: each is explained in its real wording, by its own entry."""

import ast
import json
import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from nvct import errors
from nvct.cli.main import program
from nvct.doctor import messages
from nvct.errors import NvctError, UsageError, line
from nvct.host import faults

REPOSITORY = Path(__file__).parents[3]


class Wording(NamedTuple):
    """A line of wordings.txt."""

    name: str
    source: str
    text: str


def wordings() -> list[Wording]:
    lines = Path(__file__).with_name("wordings.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return [Wording(name, source, text.replace("\\n", "\n")) for name, source, text in rows]


WORDINGS = wordings()
each_wording = pytest.mark.parametrize("one", WORDINGS, ids=[one.name for one in WORDINGS])


def names(text: str) -> list[str]:
    return [found.message.name for found in messages.explained(text)]


@each_wording
def test_a_real_wording_is_explained_by_its_entry(one: Wording) -> None:
    found = messages.explained(one.text)

    assert [each.message.name for each in found] == [one.name]
    assert found[0].message.cause.endswith(".")
    assert found[0].message.remedy.endswith(".")


@each_wording
@pytest.mark.parametrize("width", [50, 80])
def test_a_terminal_may_have_broken_the_lines(one: Wording, width: int) -> None:
    text = " ".join(one.text.split())

    hard = "\n".join(text[at : at + width] for at in range(0, len(text), width))

    assert one.name in names(hard)
    assert one.name in names("\n".join(textwrap.wrap(text, width, break_on_hyphens=False)))


@each_wording
def test_it_may_be_colored_prefixed_and_quoted(one: Wording) -> None:
    colored = f"\x1b[1;31mERROR\x1b[0m[0000] \x1b[33m{one.text}\x1b[0m"
    compose = "\n".join(f"gpu-app-1  | {line}" for line in one.text.split("\n"))
    quoted = json.dumps({"level": "error", "msg": one.text, "time": "2026-11-24T00:00:00Z"})

    assert one.name in names(colored)
    assert one.name in names(json.dumps({"log": quoted}))
    if "\n" not in one.text:
        assert one.name in names(compose)


def test_every_entry_has_a_real_wording_and_a_name_of_its_own() -> None:
    known = [one.name for one in messages.catalogue()]

    assert len(set(known)) == len(known)
    assert {one.name for one in WORDINGS if not one.name.startswith("xid-")} == set(known)
    assert len(known) >= 120


def test_no_repetition_is_without_a_bound() -> None:
    for message in messages.catalogue():
        assert not re.search(r"[^\\][*+]", message.pattern), message.name


def test_a_pasted_log_has_several_messages_each_of_them_once() -> None:
    log = """
    Nov 24 00:00:01 node kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.
    Nov 24 00:00:02 node dockerd[7]: level=info msg="API listen on /run/docker.sock"
    RuntimeError: No CUDA GPUs are available
    RuntimeError: No CUDA GPUs are available
    docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].
    """

    found = messages.explained(log)

    assert [(one.message.name, one.line, one.times) for one in found] == [
        ("xid-79", 2, 1),
        ("torch-no-gpu", 4, 2),
        ("docker-no-gpu-driver", 6, 1),
    ]


def test_a_general_message_is_left_out_beside_its_cause() -> None:
    hook = "error running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'"
    cause = "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"

    assert names(hook) == ["oci-hook-failed"]
    assert names(f"{hook}\n{cause}") == ["driver-not-loaded"]


@pytest.mark.parametrize(("xid", "row"), sorted(faults.read().items()))
def test_an_xid_is_explained_by_its_table(xid: int, row: faults.Row) -> None:
    (found,) = messages.explained(f"NVRM: Xid (PCI:0000:18:00): {xid}, pid=77, name=python")

    assert found.message.name == f"xid-{xid}"
    assert row.name in found.message.cause
    assert found.message.step == messages.STEPS[row.action]


@pytest.mark.parametrize(
    "text", ["XID 79", "Xid 79", "GPU 0000:db:00: XID 79 (it has fallen off the bus)"]
)
def test_an_xid_is_explained_as_doctor_writes_it(text: str) -> None:
    assert names(text) == ["xid-79"]


def test_an_unknown_xid_is_said_to_be_unknown() -> None:
    (found,) = messages.explained("NVRM: Xid (PCI:0000:18:00): 9999, pid=77")

    assert "not in the table" in found.message.cause
    assert "reset" in found.message.step


@pytest.mark.parametrize(
    "text",
    [
        "", "no space left on device", "permission denied", "exit status 1", "\x1b[31m\\n\n",
        "a permission error occurred", "HTTP error 999: Request denied", "requirement error in pip",
        "stat /dev/sda1: no such file or directory", "insufficient privileges to open the printer",
        "avc: denied { read } for pid=7 comm=x name=null tclass=chr_file",
        "0/3 nodes are available: 3 node(s) had untolerated taint {team: blue}.",
        "could not insert 'zfs': Required key not available", 'OCI runtime "kata" not found',
        "Module zfs not found in directory /lib/modules/6.1.0", "unknown flag: --gpu",
    ],
)  # fmt: skip
def test_what_is_not_about_gpus_is_not_explained(text: str) -> None:
    assert messages.explained(text) == []


@pytest.mark.parametrize(
    "piece", ["error mounting ", "Xid: ", "\x1b]", "\\", "stat nvidia.com/gpu=", "Xid\n"]
)
def test_a_hostile_text_costs_little(piece: str) -> None:
    begun = time.process_time()

    messages.explained(piece * (messages.LIMIT // len(piece) + 10))

    assert time.process_time() - begun < 5


def explain(*arguments: str, text: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(program("nvct"), ["explain", *arguments], input=text)
    return done.exit_code, done.output


def test_the_command_explains_a_message() -> None:
    status, said = explain("docker: Error: unknown or invalid runtime name: nvidia")

    assert status == 0
    assert said.startswith("Docker: The running dockerd does not know the runtime")
    assert "do: Run `nvct runtime configure --runtime=docker`." in said
    assert "reason: EngineNotReloaded" in said


def test_the_command_explains_a_log_from_standard_input() -> None:
    status, said = explain(
        "-", text="a\nRuntimeError: No CUDA GPUs are available\nXid: 31, b\n" * 3
    )

    assert status == 0
    assert said.splitlines()[0] == "line 2, 3 times"
    assert said.count("\n\n") == 1
    assert "XID 31" in said


def test_the_command_writes_json() -> None:
    _, said = explain("--format", "json", "Xid (PCI:0000:18:00): 79, and\nCUDA out of memory")

    told = json.loads(said)

    assert [one["message"] for one in told["messages"]] == ["xid-79", "cuda-out-of-memory"]
    assert told["messages"][0]["reason"] == "DeviceUnhealthy"


@pytest.mark.parametrize("word", ["CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_OUT_OF_MEMORY"])
def test_a_message_may_be_one_word(word: str) -> None:
    assert explain(word)[0] == 0


def test_the_command_explains_an_error_of_nvct_by_its_code() -> None:
    status, said = explain("nvct: no GPU has the index 9; see `nvidia-smi -L` [unknown-device]")

    assert status == 0
    assert said.startswith("nvct: no GPU has the index 9;")
    assert "reason: DeviceUnknown" in said


WRAPPINGS = {
    "docker": "docker: Error response from daemon: failed to create task for container: failed to "
    "create shim task: OCI runtime create failed: {}: unknown",
    "containerd": "ctr: failed to create shim task: OCI runtime create failed: {}: unknown",
    "kubelet": "Error: failed to create containerd task: failed to create shim task: OCI runtime "
    "create failed: {}: unknown",
    "hook": "docker: Error response from daemon: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error running hook #0: exit "
    "status 1, stdout: , stderr: {}\\n: unknown",
    "CRI-O": "Error: container create failed: {}",
    "podman": "Error: OCI runtime error: {}",
    "log": 'time="2026-11-27T04:00:00Z" level=error msg="RunPodSandbox failed" error="{}: unknown"',
}


def own_errors() -> Iterator[NvctError]:
    """Yield an error for each that the programs of the hot side raise with words of its own."""
    classes = {n: c for n, c in vars(errors).items() if isinstance(c, type)}
    for path in sorted((REPOSITORY / "nvct/container").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            made = node.exc if isinstance(node, ast.Raise) else None
            if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
                continue
            found = classes.get(made.func.id)
            if found and issubclass(found, NvctError) and made.args:
                text = ast.unparse(made.args[0])
                words = re.sub(
                    r"\{[^{}]*\}", "x", " ".join(re.findall(r"['\"]([^'\"]*)['\"]", text))
                )
                if len(words) > 10:
                    yield found(" ".join(words.split()), hint="a hint")


@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS)
def test_each_error_of_nvct_is_found_as_an_engine_prints_it(wrapping: str) -> None:
    found = list(own_errors())
    assert len(found) > 50
    for error in found:
        whole = line("nvidia-container-runtime", error)
        for printed in (whole, whole.rpartition(" [")[0], whole[: 30 + len(error.message) // 2]):
            message = messages.message_of(wrapping.format(printed))
            assert message is not None, printed
            told = printed.partition(": ")[2].rpartition(" [")[0] or printed.partition(": ")[2]
            assert message.cause == told.rstrip(" .,'`)}\""), (wrapping, printed)
            if printed == whole and error.code in messages.REASONS:
                assert message.reason is messages.REASONS[error.code]


def test_an_unknown_message_is_said_to_be_unknown() -> None:
    done = CliRunner().invoke(program("nvct"), ["explain", "the dog ate it"])

    assert isinstance(done.exception, UsageError)
    assert done.exception.message == "this is not a known message about GPUs"
    assert "nvct doctor" in done.exception.hint


def test_the_code_of_an_error_is_explained_alone() -> None:
    def told(*words: str) -> str:
        done = CliRunner().invoke(program("nvct"), ["explain", *words])
        return done.stdout if done.exception is None else str(done.exception)

    assert "reason: ConfigurationInvalid" in told("bad-config")
    assert told("[bad-config]") == told("bad-config")
    assert "wrong option" in told("usage")
    assert "docs/errors.md" in told("usage")
    assert "please report it" in told("bug")
    assert "docs/errors.md" in told("nvct: foo bar")
