# SPDX-License-Identifier: Apache-2.0
"""What the demo shows is readable on 80 columns, without color; its verdicts."""

import io

import pytest
from rich.console import Console

from nvct_sim.demo import show
from nvct_sim.demo.run import Case, Outcome, judge

UUID = "GPU-0f8377f3-f558-5f03-a51f-8cb761e224a7"


def console(width: int) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False, emoji=False), text


def done(**more: object) -> Outcome:
    fields = {
        "case": Case(title="a list of volume mounts", request="", expected=[UUID]),
        "lines": [f"GPU 0: NVIDIA T4 (UUID: {UUID})"],
        "seconds": 0.1, "nodes": 9, "mounts": 46, "hooks": 1, "right": True, **more,
    }  # fmt: skip
    return Outcome(**fields)  # type: ignore[arg-type]  # as above


def test_a_pci_address_holds_no_emoji(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    console = show.console()
    with console.capture() as capture:
        console.print("0000:ab:00.0")
    assert capture.get() == "0000:ab:00.0\n"
    assert console.width == 90


@pytest.mark.parametrize("width", [80, 100])
def test_the_summary_fits_and_says_what_is_wrong(width: int) -> None:
    out, text = console(width)
    show.summary(out, [done(), done(right=False)], 0.04, 0.042)
    output = text.getvalue()
    assert max(map(len, output.splitlines())) <= width
    assert "1 of 2 containers were as expected" in output
    assert "WRONG" in output
    assert "40 ms by the runtime alone and 42 ms through nvct" in " ".join(output.split())


def test_output_of_a_container_is_shown_as_it_is() -> None:
    out, text = console(80)
    line = f"  MIG 1g.10gb     Device  0: (UUID: {UUID}) [bold]:ab: {'x' * 60}"
    show.outcome(out, 1, done(lines=[line]))
    assert f"   {line}\n" in text.getvalue()


# Unit tests for nvct_sim.demo.run: the check of a container's exit status and output.


FIRST = "GPU-00000000-0000-5000-8000-000000000001"
SECOND = "GPU-00000000-0000-5000-8000-000000000002"
MIG = "MIG-00000000-0000-5000-8000-000000000003"
GPU_0 = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {FIRST})"
GPU_1 = f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {SECOND})"
BELOW = f"  MIG 1g.10gb     Device  0: (UUID: {MIG})"


def asks(*expected: str) -> Case:
    return Case(title="", request="", expected=expected)


def test_exactly_the_expected_gpus_are_right() -> None:
    assert judge(asks(SECOND, FIRST), 0, [GPU_0, GPU_1])


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        ((FIRST,), [GPU_0, GPU_1]),
        ((FIRST, SECOND), [GPU_0]),
        ((FIRST,), [GPU_1]),
        ((FIRST,), [GPU_0, GPU_0]),
        ((FIRST,), []),
        ((FIRST,), ["nvidia-smi: not found"]),
        ((FIRST, MIG), [GPU_0, BELOW]),
    ],
)
def test_other_gpus_are_wrong(expected: tuple[str, ...], lines: list[str]) -> None:
    assert not judge(asks(*expected), 0, lines)


def test_a_container_that_fails_is_wrong_whatever_it_lists() -> None:
    assert not judge(asks(FIRST), 1, [GPU_0])


def test_the_gpu_of_a_mig_device_is_listed_beside_it() -> None:
    assert judge(asks(MIG), 0, [GPU_0, BELOW])
    assert judge(asks(MIG, SECOND), 0, [GPU_0, BELOW, GPU_1])


def test_a_gpu_without_its_mig_device_is_wrong() -> None:
    assert not judge(asks(MIG), 0, [GPU_0])


def test_no_request_means_no_driver() -> None:
    nothing = Case(title="", request="", expected=None)
    assert judge(nothing, 0, ["no GPU, no driver in here"])
    assert not judge(nothing, 0, [GPU_0])
    assert not judge(nothing, 0, [])
    assert not judge(nothing, 1, ["no GPU, no driver in here"])


def test_a_refusal_is_one_line_that_names_the_value() -> None:
    typo = Case(title="", request="", expected=None, error="gpu0")
    assert judge(typo, 1, ["NVIDIA_VISIBLE_DEVICES asks for 'gpu0'"])
    assert not judge(typo, 0, ["NVIDIA_VISIBLE_DEVICES asks for 'gpu0'"])
    assert not judge(typo, 1, ["NVIDIA_VISIBLE_DEVICES asks for 'gpu0'", "Traceback"])
    assert not judge(typo, 1, ["something else"])
