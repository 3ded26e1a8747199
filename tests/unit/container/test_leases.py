# SPDX-License-Identifier: Apache-2.0
"""Leases of free devices: who can make one, and how long it counts."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvct.container import leases
from nvct.container.request.free import parse
from nvct.container.request.model import Want
from nvct.errors import HostError, UnsafePathError
from nvct.linux.walk import names_in
from tests.support.cpu import Limit

GPUS = [f"GPU-{n}" for n in range(8)]
ONE = parse("free:1", "x")
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="needs root for other users")


@pytest.fixture
def folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        path = Path(home) / "leases"
        os.close(leases.open_folder(str(path)))
        yield path


@pytest.fixture
def sleeper() -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["/bin/sleep", "60"])
    yield process
    process.kill()
    process.wait()


def claim(folder: Path, want: Want = ONE, devices: list[str] = GPUS, pid: int = 0) -> list[str]:
    return leases.claim(str(folder), want, devices, pid or os.getpid())


def counted(folder: Path) -> set[str]:
    fd = leases.open_folder(str(folder))
    try:
        return leases.counted(fd)
    finally:
        os.close(fd)


def made(folder: Path, device: str, pid: int, start: str = "", uid: int = 0) -> Path:
    path = folder / f"{device}.{pid}.{start or leases.start_of(pid)}.0"
    path.touch()
    os.chown(path, uid or os.geteuid(), -1)
    return path


def test_a_lease_ends_with_its_process(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert claim(folder, pid=sleeper.pid) == ["GPU-0"]
    assert counted(folder) == {"GPU-0"}
    assert claim(folder) == ["GPU-1"]

    sleeper.kill()
    assert wait_for(lambda: counted(folder) == {"GPU-1"}), "a zombie keeps no lease"

    assert [path.name.split(".")[0] for path in folder.iterdir()] == ["GPU-1"]


def wait_for(holds: object, seconds: float = 10) -> bool:
    limit = Limit(seconds)
    while not holds():  # type: ignore[operator]
        if limit.is_over:
            return False
        time.sleep(0.01)
    return True


def test_a_process_that_is_not_seen_gets_no_lease(
    folder: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PROC", "/nowhere")  # as hidepid=2 does

    with pytest.raises(HostError, match=f"process {sleeper.pid} of the container is hidden"):
        claim(folder, pid=sleeper.pid)


def test_a_number_that_another_process_has_now_keeps_no_lease(folder: Path) -> None:
    made(folder, "GPU-0", os.getpid(), "1")

    assert claim(folder) == ["GPU-0"]


def test_all_or_none_are_leased(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    claim(folder, pid=sleeper.pid)

    with pytest.raises(HostError, match="have just taken"):
        claim(folder, parse("free:2", "x"), GPUS[:2])

    assert counted(folder) == {"GPU-0"}


def test_the_hook_gives_leases_to_the_container(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    claim(folder, parse("free:2", "x"))
    former = f"{os.getpid()}.{leases.start_of(os.getpid())}"

    leases.hand_over(str(folder), 2, former, sleeper.pid)

    assert counted(folder) == {"GPU-0", "GPU-1"}
    sleeper.kill()
    sleeper.wait()
    assert counted(folder) == set()
    with pytest.raises(HostError, match="has ended"):
        leases.hand_over(str(folder), 2, former, sleeper.pid)
    with pytest.raises(HostError, match="2 of 2 leases in "):
        leases.hand_over(str(folder), 2, former, os.getpid())


@as_root
def test_a_lease_for_the_process_of_another_does_not_count(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    forged = made(folder, "GPU-0", 1, uid=1000)
    stolen = made(folder, "GPU-1", sleeper.pid, uid=1000)

    assert counted(folder) == set()
    assert not forged.exists()
    assert not stolen.exists()


@as_root
def test_a_user_leases_to_processes_of_his_own(folder: Path) -> None:
    process = subprocess.Popen(["/bin/sleep", "60"], user=1000)
    try:
        assert wait_for(lambda: os.stat(f"/proc/{process.pid}").st_uid == 1000)
        made(folder, "GPU-0", process.pid, uid=1000)
        assert counted(folder) == {"GPU-0"}
    finally:
        process.kill()
        process.wait()


@as_root
def test_nobody_removes_or_renames_the_lease_of_another(folder: Path) -> None:
    claim(folder)
    (name,) = os.listdir(folder)
    attack = f"""
import os
os.chdir({str(folder)!r}); os.setgid(1000); os.setuid(1000)
for act in (lambda: os.unlink({name!r}), lambda: os.rename({name!r}, "GPU-1.1.1"),
            lambda: os.truncate({name!r}, 0), lambda: os.open({name!r}, os.O_WRONLY)):
    try:
        act()
    except PermissionError:
        continue
    raise SystemExit("it worked")
open("x", "w").close()
try:
    os.rename("x", {name!r})
except PermissionError:
    raise SystemExit(0)
raise SystemExit("replaced")
"""
    run = subprocess.run(
        [sys.executable, "-c", attack], check=False, capture_output=True, text=True
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert counted(folder) == {"GPU-0"}


@pytest.mark.parametrize(
    "name", ["GPU-0.1", "GPU-0.1.1", "GPU-0.x.1.1", "GPU-0.-1.1.1", "a.b.c.d", "GPU-0.0.0.0"]
)
def test_other_names_are_no_leases(folder: Path, name: str) -> None:
    (folder / name).touch()

    assert counted(folder) == set()


def test_only_a_file_is_a_lease(folder: Path) -> None:
    start = leases.start_of(os.getpid())
    (folder / f"GPU-0.{os.getpid()}.{start}.0").symlink_to("/etc/passwd")
    (folder / f"GPU-1.{os.getpid()}.{start}.0").mkdir()
    os.mkfifo(folder / f"GPU-2.{os.getpid()}.{start}.0")

    assert counted(folder) == set()


def test_a_folder_that_others_rule_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(UnsafePathError, match="mode 777"):
        claim(folder)
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(UnsafePathError, match="mode 777"):
        claim(link)


def test_a_link_is_followed_as_rootless_docker_has_one(folder: Path) -> None:
    """rootlesskit --copy-up=/run makes links of what is in /run, in a user's own namespaces."""
    link = folder.parent / "link"
    link.symlink_to(folder)

    assert claim(link) == ["GPU-0"]
    assert counted(folder) == {"GPU-0"}


@as_root
def test_rootless_docker_makes_no_folder_of_its_own(folder: Path) -> None:
    """It may write in its /run; a folder there would not be that of the host."""
    new = folder.parent / "new"

    refused = looked(["unshare", "--user", "--map-root-user"], str(new))

    assert refused == f"{new}, the folder of GPU leases, is missing"
    assert not new.exists()


def test_a_file_in_place_of_the_folder_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UnsafePathError, match="not a folder: Not a directory") as caught:
        claim(tmp_path / "file")
    assert caught.value.hint.startswith(f"as root: rm -r {tmp_path}/file; install -d")


@as_root
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    os.chown(folder, 1000, 1000)

    with pytest.raises(UnsafePathError, match="uid 1000"):
        claim(folder)


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    assert claim(tmp_path / "new") == ["GPU-0"]
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o1777
    with pytest.raises(HostError, match="cannot be made"):
        claim(tmp_path / "missing/new")


def test_a_flood_of_files_ends_where_root_comes(
    folder: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(folder, pid=sleeper.pid)
    monkeypatch.setattr(leases, "NAMES", 3)
    for number in range(4):
        (folder / str(number)).touch()
        (folder / f"d{number}").mkdir()

    if IS_ROOT:
        assert claim(folder) == ["GPU-1"]
        assert len(list(folder.iterdir())) == 2
        return
    with pytest.raises(UnsafePathError, match="more than 3 files"):
        claim(folder)


FULL = """
import os, sys
from nvct.container import leases
from nvct.container.request.free import parse
os.seteuid(1000)
made = 0
try:
    while True:
        open(f"{sys.argv[1]}/{made}", "w").close()
        made += 1
except OSError:
    assert made > leases.NAMES, made
os.seteuid(0)
print(*leases.claim(sys.argv[1], parse("free:1", "x"), ["GPU-7"], os.getpid()))
"""


@as_root
def test_root_cleans_the_packages_folder_when_a_user_has_filled_it(folder: Path) -> None:
    unit = Path(__file__).parents[3] / "packaging/systemd/run-nvct_leases.mount"
    (options,) = re.findall(r"^Options=(.*)$", unit.read_text(), re.MULTILINE)
    mount = f'mount -t tmpfs -o {options} leases {folder} && exec "$@"'

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "-", sys.executable, "-c", FULL, str(folder)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert (done.stdout, done.stderr) == ("GPU-7\n", "")


def test_nobody_makes_a_name_in_the_way(folder: Path) -> None:
    for device in GPUS:
        (folder / f"{device}.{os.getpid()}.{leases.start_of(os.getpid())}").mkdir()

    assert claim(folder) == ["GPU-0"]


THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_lease_ends_with_the_last_thread(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", THREAD])
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        assert wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        made(folder, "GPU-0", process.pid)

        assert counted(folder) == {"GPU-0"}
    finally:
        process.kill()
    assert wait_for(lambda: counted(folder) == set())
    process.wait()


def meets(one: str, other: str) -> bool:
    assert leases.meet(one, other) == leases.meet(other, one)
    return leases.meet(one, other)


def test_a_gpu_and_its_mig_devices_are_leased_together(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    assert meets("GPU-0", "GPU-0:1-0")
    assert not meets("GPU-0:1-0", "GPU-0:2-0")
    assert not meets("GPU-0", "GPU-01:1-0")
    claim(folder, devices=["GPU-0"], pid=sleeper.pid)
    claim(folder, devices=["GPU-1:1-0"], pid=sleeper.pid)

    assert claim(folder, devices=["GPU-0:1-0", "GPU-1", "GPU-1:2-0"]) == ["GPU-1:2-0"]


LOOK = """
import os, sys
from nvct.container import leases
if len(sys.argv) > 2:
    os.setgid(1001); os.setuid(1001)
try:
    fd = leases.open_folder(sys.argv[1])
    print(*leases.counted(fd))
except Exception as error:
    print(error)
"""


def looked(words: list[str], *more: str) -> str:
    """Return which devices are leased, or why not, as a process in other namespaces sees it."""
    done = subprocess.run(
        [*words, sys.executable, "-c", LOOK, *more], check=False, capture_output=True, text=True
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    return done.stdout.strip() + done.stderr


@as_root
@pytest.mark.parametrize("hidepid", [0, 1, 2])
def test_what_hidepid_hides_counts(
    folder: Path, sleeper: subprocess.Popen[bytes], hidepid: int
) -> None:
    claim(folder, pid=sleeper.pid)
    mount = f'mount -t proc -o hidepid={hidepid} proc /proc && exec "$@"'

    assert looked(["unshare", "--mount", "sh", "-c", mount, "-"], str(folder), "user") == "GPU-0"
    sleeper.kill()
    sleeper.wait()
    assert looked(["unshare", "--mount", "sh", "-c", mount, "-"], str(folder), "user") == ""


@as_root
@pytest.mark.parametrize(
    "other", [["--pid", "--fork", "--mount-proc"], ["--pid", "--fork"], ["--time", "--boottime=9"]]
)
def test_processes_of_other_namespaces_neither_see_nor_remove_leases(
    folder: Path, sleeper: subprocess.Popen[bytes], other: list[str]
) -> None:
    claim(folder, pid=sleeper.pid)

    refused = looked(["unshare", *other], str(folder))

    assert refused.startswith(f"{folder} is for another PID or time namespace, ")
    assert counted(folder) == {"GPU-0"}


MACHINE = """
import os, sys
from nvct.container import leases
from nvct.container.request.free import parse
folder = sys.argv[1]
leases.NAMES = 3
os.close(leases.open_folder(folder))
for number in range(5):
    open(f"{folder}/{number}", "w").close()
print(*leases.claim(folder, parse("free:1", "x"), ["GPU-7"], os.getpid()))
os.seteuid(1001)
print(*leases.counted(leases.open_folder(folder)))
os.seteuid(0)
os.chown(f"{folder}/{leases._namespaces()}", 1001, 1001)
try:
    leases.open_folder(folder)
except Exception as error:
    print(error)
try:
    leases.open_folder(f"{folder}-2", create=False)
except Exception as error:
    os.system(error.hint.removeprefix("as root: "))
print(leases.open_folder(f"{folder}-2") > 0)
"""


@as_root
def test_a_machine_in_a_container_has_a_folder_of_its_own(folder: Path) -> None:
    """As a kind node or Docker in Docker: root, who makes the folder, records the namespaces.

    By hand as well.
    """
    done = subprocess.run(
        [
            "unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", MACHINE,
            str(folder.parent / "new"),
        ],
        check=False, capture_output=True, text=True,
    )  # fmt: skip

    first, second, forged, by_hand = done.stdout.splitlines() or [done.stderr] * 4
    assert (first, second, done.stderr) == ("GPU-7", "GPU-7", "")
    assert "is for another PID or time namespace" in forged
    assert by_hand == "True"


INSIDE = """
import ctypes, os, sys, time
os.setgid(1000); os.setuid(1000)
assert ctypes.CDLL(None).unshare(0x10000000) == 0
print("made", flush=True)
sys.stdin.readline()
os.setuid(0)
print("inside", flush=True)
time.sleep(600)
"""


@as_root
@pytest.mark.parametrize("ids", ["0 100000 65536", "0 0 65536"])
def test_a_lease_counts_for_who_made_the_user_namespace(folder: Path, ids: str) -> None:
    """Not for those whose ids it maps: systemd's PrivateUsers=identity maps everybody's."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", INSIDE], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "made\n":
            pytest.skip("no user namespace can be made here")
        Path(f"/proc/{process.pid}/uid_map").write_text(f"{ids}\n")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "inside\n"
        made(folder, "GPU-0", process.pid, uid=1000)
        made(folder, "GPU-1", process.pid, uid=1001)

        assert counted(folder) == {"GPU-0"}
    finally:
        process.kill()
        process.communicate()


@as_root
def test_root_opens_the_folder_that_systemd_leaves(folder: Path) -> None:
    folder.chmod(0o755)

    assert claim(folder) == ["GPU-0"]
    assert folder.stat().st_mode & 0o7777 == 0o1777


RACE = """
import os, sys, time
from nvct.container import leases
from nvct.container.request.free import parse
from nvct.container.request.model import Want
from nvct.errors import HostError
leases.RETRY_S = 5
sys.stdin.read(1)
try:
    print(*leases.claim(sys.argv[1], parse("free:1", "x"), sys.argv[2:], os.getpid()), flush=True)
except HostError:
    print("refused", flush=True)
sys.stdin.read()
"""


def test_thirty_at_once_get_each_gpu_once(folder: Path) -> None:
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(folder), *GPUS], stdin=pipe, stdout=pipe, text=True
        )
        for _ in range(30)
    ]

    def start(racer: subprocess.Popen[str]) -> str:
        assert racer.stdin is not None
        assert racer.stdout is not None
        racer.stdin.write("x")
        racer.stdin.flush()
        return racer.stdout.readline().strip()

    try:
        with ThreadPoolExecutor(30) as pool:
            got = sorted(pool.map(start, racers))
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert got == [*GPUS, *["refused"] * 22]
    assert counted(folder) == set()


def test_who_has_made_a_lease_looks_again(
    folder: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(folder, pid=sleeper.pid)
    monkeypatch.setattr(leases, "counted", lambda _fd: set())  # both have looked before

    assert claim(folder) == ["GPU-1"]

    assert sorted(path.name.split(".")[:2] for path in folder.iterdir()) == [
        ["GPU-0", str(sleeper.pid)], ["GPU-1", str(os.getpid())],
    ]  # fmt: skip


def test_a_lease_that_is_renamed_during_the_look_is_seen(
    folder: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getppid()
    claim(folder, pid=sleeper.pid)
    former = f"{sleeper.pid}.{leases.start_of(sleeper.pid)}"
    done: list[int] = []

    def rename_after(fd: int, limit: int) -> list[str] | None:
        names = names_in(fd, limit)
        if any(name.startswith(f"GPU-0.{former}.") for name in names or ()) and not done:
            done.append(1)
            leases.hand_over(str(folder), 1, former, parent)
        return names

    monkeypatch.setattr(leases, "counted", lambda _fd: set())  # both have looked before
    monkeypatch.setattr(leases, "names_in", rename_after)

    assert claim(folder) == ["GPU-1"]


def test_who_only_looks_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="is missing"):
        leases.open_folder(str(tmp_path / "new"), create=False)
    assert not (tmp_path / "new").exists()
