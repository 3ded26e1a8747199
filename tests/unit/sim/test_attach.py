# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.attach: a node in a private mount namespace."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from nvct.errors import HostError, UsageError
from nvct.linux.kernel import KERNEL
from nvct_sim import attach, node_changes, rootfs, run_folder, state, tree
from nvct_sim.process import spawn
from tests.support.on_node import run_in

REASON = "needs root and CAP_SYS_ADMIN"
pytestmark = [pytest.mark.engine, pytest.mark.skipif(os.geteuid() != 0, reason=REASON)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> tree.Node:
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    return tree.create("lab", "h100-mig", tmp_path_factory.mktemp("sim"), native=False)


def shell(node: tree.Node, script: str, *, driver_root: str = attach.DRIVER_ROOT) -> str:
    done = run_in(node, ["/bin/sh", "-ec", script], driver_root=driver_root)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_proc_and_sys_show_the_simulated_driver_beside_the_hosts_lines(node: tree.Node) -> None:
    out = shell(
        node,
        "cat /proc/driver/nvidia/version /sys/module/nvidia/version; cat /proc/devices;"
        "cat /sys/bus/pci/devices/0000:18:00.0/vendor; ls /sys/module | wc -l",
    ).splitlines()

    assert "580.159.04" in out[0]
    assert out[2] == "580.159.04"
    assert "195 nvidia" in out or any(line.endswith(" nvidia") for line in out)
    assert out[-2] == "0x10de"
    assert int(out[-1]) == len(os.listdir("/sys/module")) + 4
    host = Path("/proc/devices").read_text().splitlines()
    assert [line for line in host if line not in out and "nvidia" not in line] == []


def test_programs_read_the_pci_devices_of_a_node(node: tree.Node) -> None:
    out = shell(
        node,
        "cd /sys/bus/pci/devices/0000:18:00.0; readlink -e driver; head -c 4 config | od -An -tx1;"
        "test ! -d /sys/kernel/iommu_groups || readlink -e iommu_group >/dev/null;"
        "test ! -e /proc/modules || grep -c ^nvidia /proc/modules; ls /sys/bus/pci/drivers",
    ).splitlines()

    assert out[0] == "/sys/bus/pci/drivers/nvidia"
    assert out[1].split() == ["de", "10", "30", "23"]
    assert set(os.listdir("/sys/bus/pci/drivers")) < set(out)


def test_a_command_can_have_proc_modules_on_a_kernel_without_it(node: tree.Node) -> None:
    out = shell(
        node,
        f"{run_folder.PROGRAMS}/with-proc-modules sh -c '"
        "grep ^nvidia_uvm /proc/modules; read line < /proc/modules; echo $line; cat /etc/hostname;"
        "ls /absent 2>&1; exit 3' || echo $?",
    ).splitlines()

    hostname = Path("/etc/hostname").read_text().strip()
    assert [line.split()[0] for line in out[:3]] == ["nvidia_uvm", "nvidia", hostname]
    assert "No such file" in out[3]
    assert out[4] == "3"


def test_dev_has_the_usual_nodes_and_those_of_the_driver(node: tree.Node) -> None:
    out = shell(
        node,
        "echo x > /dev/null; head -c 3 /dev/zero | wc -c; echo via >/dev/stdout;"
        "ls /dev/pts > /dev/null; cd /dev; stat -c '%t:%T %a' nvidia0 nvidiactl nvidia-caps/*1",
    ).splitlines()

    assert out[:2] == ["3", "via"]
    assert out[2:4] == ["c3:0 666", "c3:ff 666"]


def test_with_root_as_driver_root_the_driver_lies_over_the_host(node: tree.Node) -> None:
    out = shell(
        node,
        "ldconfig -p | grep -c libcuda.so; cat /etc/OpenCL/vendors/nvidia.icd; ls /usr/bin/env;"
        "ls /run/nvidia-persistenced/socket; ls -d /run/nvidia/driver 2>&1 || true",
        driver_root="/",
    ).splitlines()

    assert out[:3] == ["2", "libnvidia-opencl.so.1", "/usr/bin/env"]
    assert out[3] == "/run/nvidia-persistenced/socket"
    assert "No such file" in out[4]


def test_nothing_is_left_on_the_host(node: tree.Node) -> None:
    before = Path("/proc/self/mountinfo").read_text()

    shell(
        node,
        "touch /etc/left /run/left /dev/left /etc/cdi/left /run/cdi/left /run/nvct/left"
        " /var/run/cdi/also",
    )

    assert Path("/proc/self/mountinfo").read_text() == before
    for folder in ("/etc", "/run", "/dev", "/etc/cdi", "/run/cdi", "/run/nvct"):
        assert not Path(folder, "left").exists()
    assert os.listdir(node.tree / "mnt") == []


def test_spec_folders_are_private_and_the_hosts_files_stay_visible(node: tree.Node) -> None:
    empty = shell(node, "ls -A /etc/cdi /var/run/cdi /run/nvct | grep -v : ; stat -c %a /run/nvct")
    out = shell(node, "cat /etc/passwd; ls -A /run")

    assert empty.split() == ["700"]
    assert out.startswith(Path("/etc/passwd").read_text())
    own = {"nvct", "cdi", "nvidia", "nvct-sim", *attach.ENGINES_RUN}
    assert {name for name in os.listdir("/run") if name not in own} <= set(out.split())


def test_a_user_namespace_can_have_its_own_proc_and_sys(node: tree.Node) -> None:
    output = shell(
        node,
        "unshare --user --map-root-user --pid --net --mount --fork sh -ec"
        " 'mount -t proc proc /mnt; cat /mnt/sys/kernel/ostype; mount -t sysfs sys /media'",
    )

    assert output == "Linux\n"


def test_the_hosts_engines_stay_outside(node: tree.Node) -> None:
    """A dockerd that is started on the node would take their sockets and process ids for its."""

    def enter() -> None:
        attach.make_private()
        KERNEL.mount("host", "/run", "tmpfs")
        for name in ("containerd", "dbus"):
            Path("/run", name).mkdir()
        for name in ("docker.sock", "docker.pid"):
            Path("/run", name).touch()
        attach.enter(node)

    out, _ = spawn(["ls", "/run"], enter, stdout=-1).communicate()

    assert out.split() == [b"cdi", b"dbus", b"lock", b"nvct", b"nvct-sim", b"nvidia"]


def test_a_container_that_allows_no_nodes_of_the_driver_is_told_by_the_check(
    node: tree.Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As systemd-nspawn: it allows /dev/null and its like."""
    mknod = os.mknod

    def some(path: Path, mode: int = 0o600, device: int = 0) -> None:
        if os.major(device) > 10:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        mknod(path, mode, device)

    monkeypatch.setattr(os, "mknod", some)

    reason = rootfs.can_run_containers()
    assert reason is not None
    assert "device nodes of the driver cannot be made: Operation not permitted" in reason
    assert not tree.create("plain", "t4", tmp_path, native=False).real_nodes
    with pytest.raises(HostError) as caught:
        run_in(node, ["true"])
    assert caught.value.hint == "see `nvct sim check`"


def test_an_empty_run_is_possible_and_only_the_given_environment_is_passed(
    node: tree.Node,
) -> None:
    done = run_in(node, ["ls", "/run"], host_run=False)
    only = run_in(node, ["/usr/bin/env"], {"ONLY": "this"})

    assert done.stdout.split() == ["cdi", "lock", "nvct", "nvct-sim", "nvidia"]
    assert only.stdout == "ONLY=this\n"


def test_a_mig_device_that_is_created_later_appears_at_once(
    tmp_path: Path, node: tree.Node
) -> None:
    del node  # its fixture skips the test if nodes cannot be attached here
    live = tree.create("live", "mixed", tmp_path, native=False)
    script = (
        "touch $0/ready; i=0; while [ ! -e $0/go ]; do sleep 0.05; i=$((i+1)); [ $i -lt 400 ]; done;"
        "ls /dev/nvidia-caps; ls /proc/driver/nvidia/capabilities/gpu1/mig"
    )
    process = spawn(
        ["/bin/sh", "-ec", script, str(tmp_path)], lambda: attach.enter(live), stdout=-1
    )
    while not (tmp_path / "ready").exists():
        assert process.poll() is None

    gi, _ = node_changes.create_instance(live, 2, "3g.40gb")
    (tmp_path / "go").touch()

    out = process.communicate(timeout=30)[0].decode().split()
    assert f"gi{gi}" in out
    minors = [cap.fields["minor"] for cap in live.state().find("cap", gpu=2)]
    assert {f"nvidia-cap{minor}" for minor in minors} <= set(out)


def test_the_exit_status_is_that_of_the_program(node: tree.Node) -> None:
    assert attach.exec_in(node, ["/bin/sh", "-c", "exit 7"]) == 7
    assert attach.exec_in(node, ["/bin/sh", "-c", "kill -TERM $$"]) == 128 + 15


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_a_signal_to_end_is_passed_on_to_the_program(node: tree.Node, name: str) -> None:
    script = f"trap 'exit 9' {name}; kill -{name} $PPID; while :; do sleep 0.05; done"
    before = signal.getsignal(signal.SIGTERM)

    assert attach.exec_in(node, ["/bin/sh", "-c", script]) == 9
    assert signal.getsignal(signal.SIGTERM) is before


# POSIX, Shell Command Language, 2.8.2: exit status of a command that is not found or not executed.
NOT_STARTED = {
    "missing": (None, "No such file or directory", 127),
    "not-executable": (0o644, "Permission denied", 126),
    "of-no-format": (0o755, "Exec format error", 126),
}


@pytest.mark.parametrize("name", NOT_STARTED)
def test_a_program_that_does_not_start_is_named_with_a_shells_exit_status(
    node: tree.Node, tmp_path: Path, name: str
) -> None:
    mode, reason, status = NOT_STARTED[name]
    path = tmp_path / name
    if mode is not None:
        path.write_text("no program\n")
        path.chmod(mode)

    with pytest.raises(UsageError, match=f"cannot run '{path}': {reason}") as caught:
        attach.exec_in(node, [str(path)])

    assert caught.value.exit_status == status


def test_a_node_is_attached_neither_to_the_hosts_own_namespace_nor_inside_another(
    node: tree.Node,
) -> None:
    def twice() -> None:
        attach.enter(node)
        attach.enter(node)

    with pytest.raises(HostError, match="only in a private mount namespace"):
        attach.attach(node)
    with pytest.raises(HostError, match="is on a simulated node already"):
        spawn(["/bin/true"], twice)


def test_an_error_in_the_new_process_reaches_the_caller(tmp_path: Path, node: tree.Node) -> None:
    del node
    broken = tree.create("broken", "t4", tmp_path, native=False)
    shutil.rmtree(broken.tree / "sys/module")

    with pytest.raises(HostError, match=r"cannot attach node broken: .*No such file"):
        attach.exec_in(broken, ["/bin/true"])


def test_a_major_that_another_driver_took_is_refused(tmp_path: Path, node: tree.Node) -> None:
    del node
    taken = tree.create("taken", "t4", tmp_path, native=False)
    with state.change(taken.state_file) as now:
        now.find("major")[0].fields["nvidia-caps"] = "1"

    with pytest.raises(HostError, match="major 1 of nvidia-caps now belongs to mem"):
        attach.exec_in(taken, ["/bin/true"])


UPGRADED = """
seen() {
  ls -d /usr/lib/*/libnvidia-ml.so.5* /usr/lib/*/libcuda.so.5* /usr/lib/firmware/nvidia/* | sed 's,.*/,,'
  readlink /usr/lib/*/libcuda.so.1 | tail -n 1
}
seen > $0/before; touch $0/ready
while [ ! -e $0/go ]; do sleep 0.05; done
seen > $0/after; cat /sys/module/nvidia/version; head -n 1 /proc/driver/nvidia/version
"""


def test_a_process_on_a_node_keeps_the_user_space_from_before_an_upgrade(
    tmp_path: Path, node: tree.Node
) -> None:
    del node
    upgraded = tree.create("upgraded", "t4", tmp_path, native=False)
    process = spawn(
        ["/bin/sh", "-ec", UPGRADED, str(tmp_path)],
        lambda: attach.enter(upgraded, driver_root="/"), stdout=-1,
    )  # fmt: skip
    while not (tmp_path / "ready").exists():
        assert process.poll() is None

    upgraded = node_changes.upgrade(upgraded, "581.1.2")
    node_changes.reload_module(upgraded)
    (tmp_path / "go").touch()

    module, version = process.communicate(timeout=30)[0].decode().splitlines()
    before = (tmp_path / "before").read_text()
    assert before.count("580.159.04") == before.count("\n")
    assert (tmp_path / "after").read_text() == before
    assert module == "581.1.2"
    assert "581.1.2" in version
    inside = shell(upgraded, UPGRADED.split("seen >", maxsplit=1)[0] + "seen", driver_root="/")
    assert inside.count("581.1.2") == inside.count("\n") == before.count("\n")
