# SPDX-License-Identifier: Apache-2.0
"""The device program: its decisions, and that the kernel accepts and replaces it."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.container.prestart import device_filter
from nvct.container.prestart.device_filter import ANY, Rule
from nvct.container.prestart.rules import DEFAULTS
from nvct.errors import HostError
from tests.support.forked import run_forked
from tests.support.processes import captured

LOAD_HALF = 0x69
RUNC_LIKE = b"".join(
    struct.pack("<BBhi", *code)
    for code in (
        (LOAD_HALF, 2 | 1 << 4, 0, 0),  # the type, by its own half of the word
        (device_filter.LOAD_WORD, 4 | 1 << 4, 4, 0),
        (device_filter.IF_NOT_EQUAL, 2, 3, 2),
        (device_filter.IF_NOT_EQUAL, 4, 2, 1),
        (device_filter.MOVE_IMM, 0, 0, 1),
        (device_filter.EXIT, 0, 0, 0),
        (device_filter.MOVE_IMM, 0, 0, 0),
        (device_filter.EXIT, 0, 0, 0),
    )
)
"""A program that reads its context as runc's do: it allows character devices of major 1."""
DENY_ALL = Rule("a", ANY, ANY, "rwm", allow=False)
NUMBERS = st.sampled_from([ANY, 0, 1, 195, 509])
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from("abcu"),
        NUMBERS,
        NUMBERS,
        st.sampled_from(["r", "w", "m", "rw", "rwm", "wm"]),
        allow=st.booleans(),
    ),
    max_size=8,
)
DEVICES = st.tuples(
    st.sampled_from("bc"),
    st.sampled_from([0, 1, 195, 509, 7]),
    st.sampled_from([0, 1, 195, 509, 7]),
)


def decide(program: bytes, kind: str, major: int, minor: int, access: str) -> bool:
    """Run a program as the kernel does, as far as it uses the instruction set."""
    bits = sum(device_filter.ACCESS[letter] for letter in access)
    context = struct.pack("III", bits << 16 | device_filter.KINDS[kind], major, minor)
    code = list(struct.iter_unpack("<BBhi", program))
    registers = [0] * 11
    at = 0
    while True:
        operation, pair, offset, immediate = code[at]
        to, source = pair & 15, pair >> 4
        at += 1
        if operation == device_filter.LOAD_WORD:
            (registers[to],) = struct.unpack_from("I", context, offset)
        elif operation == device_filter.MOVE:
            registers[to] = registers[source]
        elif operation == device_filter.MOVE_IMM:
            registers[to] = immediate
        elif operation == device_filter.AND:
            registers[to] &= immediate
        elif operation == device_filter.SHIFT_RIGHT:
            registers[to] >>= immediate
        elif operation == device_filter.IF_EQUAL:
            at += offset if registers[to] == immediate else 0
        elif operation == device_filter.IF_NOT_EQUAL:
            at += offset if registers[to] != immediate else 0
        elif operation == device_filter.EXIT:
            return registers[0] == 1
        else:
            raise AssertionError(f"unknown instruction {operation:#x}")


def expected(rules: list[Rule], kind: str, major: int, minor: int, access: str) -> bool:
    """Say what cgroup v1 would: the last rule that names the access decides."""
    for letter in access:
        allowed = False
        for rule in rules:
            fits = (
                rule.kind in ("a", kind)
                and rule.major in (ANY, major)
                and rule.minor in (ANY, minor)
                and letter in rule.access
            )
            allowed = rule.allow if fits else allowed
        if not allowed:
            return False
    return True


@given(RULES, DEVICES, st.sampled_from(["r", "w", "m", "rw", "rm", "rwm"]))
def test_a_program_decides_as_the_rules_do(
    rules: list[Rule], device: tuple[str, int, int], access: str
) -> None:
    program = device_filter.build(rules)

    assert decide(program, *device, access) == expected(rules, *device, access)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Return a cgroup of v2 that device programs can be attached to, or skip."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    mount_points = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    if os.geteuid() or not mount_points:
        pytest.skip("needs root and a cgroup v2 hierarchy")
    folder = Path(mount_points[0], f"nvct-test-{os.getpid()}")
    try:
        folder.mkdir()
        os.close(device_filter.load(device_filter.build([]), "nvct_test"))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no device programs here: {error}")
    yield folder
    folder.rmdir()


def _opens(cgroup: Path, device: Path) -> str:
    script = f"echo $$ > {cgroup}/cgroup.procs; cat {device}"
    result = captured(["sh", "-c", script], env={"LC_ALL": "C"})
    return result.stderr.strip().rpartition(": ")[2]


@pytest.mark.parametrize("flags", [device_filter.ALLOW_MULTI, 0])
def test_the_kernel_replaces_a_program(flags: int, cgroup: Path, tmp_path: Path) -> None:
    base = [DENY_ALL, *(Rule(*rule, allow=True) for rule in DEFAULTS)]
    gpu = tmp_path / "nvidia0"
    os.mknod(gpu, 0o20666, os.makedev(195, 77))
    fd = os.open(cgroup, os.O_RDONLY)
    first = device_filter.load(device_filter.build(base), "first")
    device_filter.attach(fd, first, flags)
    before = device_filter.query(fd)
    assert _opens(cgroup, gpu) == "Operation not permitted"

    device_filter.replace([str(cgroup)], [*base, Rule("c", 195, 77, "rw", allow=True)])

    after = device_filter.query(fd)
    os.close(fd)
    os.close(first)
    assert (after[0], len(after[1])) == (before[0], 1)
    assert after[1] != before[1]
    assert _opens(cgroup, gpu) == "No such device or address"
    assert _opens(cgroup, Path("/dev/null")) == ""
    assert _opens(cgroup, Path("/dev/kmsg")) == "Operation not permitted"


def test_each_of_several_programs_is_replaced(cgroup: Path, tmp_path: Path) -> None:
    gpu = tmp_path / "nvidia0"
    os.mknod(gpu, 0o20666, os.makedev(195, 77))
    fd = os.open(cgroup, os.O_RDONLY)
    for name in ("one", "two"):
        device_filter.attach(
            fd,
            device_filter.load(device_filter.build([DENY_ALL]), name),
            device_filter.ALLOW_MULTI,
        )
    assert len(device_filter.query(fd)[1]) == 2

    device_filter.replace([str(cgroup)], [Rule("c", 195, ANY, "rw", allow=True)])

    assert len(device_filter.query(fd)[1]) == 2
    os.close(fd)
    assert _opens(cgroup, gpu) == "No such device or address"


def test_an_extended_program_allows_more_and_otherwise_decides_as_before(
    cgroup: Path, tmp_path: Path
) -> None:
    """The rules of the programs that are there are not known: each keeps its own."""
    gpu = tmp_path / "nvidia0"
    os.mknod(gpu, 0o20666, os.makedev(195, 77))
    fd = os.open(cgroup, os.O_RDONLY)
    base = [DENY_ALL, *(Rule(*rule, allow=True) for rule in DEFAULTS)]
    for program in (device_filter.build(base), RUNC_LIKE):
        device_filter.attach(fd, device_filter.load(program, "theirs"), device_filter.ALLOW_MULTI)
    assert _opens(cgroup, gpu) == "Operation not permitted"

    for _ in range(2):
        device_filter.extend([str(cgroup)], [Rule("c", 195, 77, "rw", allow=True)])

    assert len(device_filter.query(fd)[1]) == 2
    os.close(fd)
    assert _opens(cgroup, gpu) == "No such device or address"
    assert _opens(cgroup, Path("/dev/null")) == ""
    assert _opens(cgroup, Path("/dev/kmsg")) == "Operation not permitted"
    other = tmp_path / "nvidia1"
    os.mknod(other, 0o20666, os.makedev(195, 78))
    assert _opens(cgroup, other) == "Operation not permitted"


@given(
    RULES,
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3),
    DEVICES,
    st.sampled_from(["r", "rw", "m"]),
)
def test_rules_before_a_program_only_add(
    program_rules: list[Rule],
    numbers: list[tuple[int, int]],
    device: tuple[str, int, int],
    access: str,
) -> None:
    added_rules = [Rule("c", major, minor, "rw", allow=True) for major, minor in numbers]
    program = device_filter.build(program_rules)

    decision = decide(device_filter.before(added_rules, program), *device, access)

    is_ours = any(expected([rule], *device, access) for rule in added_rules)
    assert decision == (is_ours or decide(program, *device, access))


def test_a_cgroup_without_programs_gets_none(cgroup: Path) -> None:
    device_filter.replace([str(cgroup)], [DENY_ALL])

    fd = os.open(cgroup, os.O_RDONLY)
    assert device_filter.query(fd)[1] == []
    os.close(fd)


def test_the_kernel_accepts_a_program_of_400_rules(cgroup: Path) -> None:
    rules = [Rule("c", 200 + n, n, "rw", allow=bool(n % 2)) for n in range(400)]

    os.close(device_filter.load(device_filter.build(rules), "large"))


def test_a_refusal_by_the_kernel_names_the_cgroup(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"cannot change the device rules of {tmp_path}/no: No "):
        device_filter.replace([f"{tmp_path}/no"], [])
    with pytest.raises(HostError, match=f"cannot change the device rules of {tmp_path}"):
        device_filter.replace([str(tmp_path)], [])  # no cgroup


def test_descriptors_of_programs_are_closed_by_an_exec(cgroup: Path) -> None:
    def child() -> None:
        fd = device_filter.load(device_filter.build([]), "inherit")
        assert not os.get_inheritable(fd)

    assert cgroup.is_dir()
    assert run_forked(child) == 0
