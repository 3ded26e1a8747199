# SPDX-License-Identifier: Apache-2.0
import errno

import pytest

from nvct.container.cdi_hook.context import Context
from nvct.container.cdi_hook.disable_device_node_modification import mask, run
from nvct.container.plan.hook_command import Options
from nvct.errors import HostError
from nvct.linux.kernel import Kernel
from tests.support.containers import Container, run_hook
from tests.support.forked import in_mount_namespace

HOOK = "disable-device-node-modification"
ON = "EnableMSI: 1\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"
OFF = ON.replace("Files: 1", "Files: 0")
TARGET = "/proc/driver/nvidia/params"


class OldKernel(Kernel):
    """A kernel before 5.2 (no open_tree)."""

    def open_tree(self, *_args: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize(
    ("params", "masked"),
    [
        (ON, OFF),
        (OFF, None),
        ("", None),
        ("ModifyDeviceFiles: 2\n", None),
        ("ModifyDeviceFiles: 10\n", None),
        ("XModifyDeviceFiles: 1\n", None),
        ("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"),
    ],
)
def test_only_an_enabled_switch_is_masked(params: str, masked: str | None) -> None:
    assert mask(params.encode()) == (None if masked is None else masked.encode())


def test_without_params_on_the_host_the_state_is_not_even_read(container: Container) -> None:
    assert run_hook(HOOK, "--proc-root", str(container.proc), state=b"nonsense") == 0


def test_a_container_without_params_needs_no_mask(container: Container) -> None:
    container.params(ON)

    assert container.hook(HOOK, "--proc-root", str(container.proc)) == 0
    assert container.tree() == {}


def test_params_that_are_not_a_file_fail(
    container: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    container.params(ON)
    (container.root / TARGET[1:]).mkdir(parents=True)

    assert container.hook(HOOK, "--proc-root", str(container.proc)) == 1
    assert f"{TARGET} in the container is not a regular file" in capsys.readouterr().err


def context_of(container: Container, kernel: Kernel) -> Context:
    state = container.bundle.parent / "state"
    state.write_text(f'{{"bundle": "{container.bundle}"}}')
    options = Options()
    options.given = {"proc-root": [str(container.proc)], "container-spec": [str(state)]}
    return Context(options, -1, pytest.fail, kernel=kernel)


@pytest.mark.parametrize("kernel", [Kernel(), OldKernel()], ids=["new", "old"])
def test_the_mask_is_read_only_and_leaves_no_other_mount(
    container: Container, kernel: Kernel
) -> None:
    container.params(ON)
    params = container.file(TARGET, ON)
    before = container.tree()

    def masked() -> None:
        for _ in range(2):
            context = context_of(container, kernel)
            run(context)
            context.close()
        assert params.read_text() == OFF
        with pytest.raises(OSError) as refused:
            params.open("w")
        assert refused.value.errno == errno.EROFS
        with pytest.raises(OSError) as refused:
            params.chmod(0o666)
        assert refused.value.errno == errno.EROFS
        lines = [line for line in open("/proc/self/mountinfo") if TARGET in line]  # noqa: SIM115  a child
        assert len(lines) == 1
        assert "nosuid" in lines[0]
        assert "shared:" not in lines[0]
        assert container.tree() == before | {TARGET[1:]: OFF}

    in_mount_namespace(masked)
    assert container.tree() == before


class RefusingKernel(Kernel):
    """A kernel that lets this process mount nothing."""

    def open_tree(self, *_args: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_refused_mount_is_one_clear_sentence_and_leaves_nothing(container: Container) -> None:
    container.params(ON)
    container.file(TARGET, ON)
    before = container.tree()
    context = context_of(container, RefusingKernel())

    with pytest.raises(HostError, match="cannot mount over /proc/driver/nvidia/params"):
        run(context)

    context.close()
    assert container.tree() == before
