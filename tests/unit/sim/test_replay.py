# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.replay: a snapshot gives the same results as its host."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.sim import sim
from nvct.errors import DriverNotFoundError, NvmlError, UsageError
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.snapshot import document, record
from nvct_sim import replay
from tests.support.commands import invoke
from tests.support.host_tree import LIB, VERSION, FakeNvml, HostTree, nvml_gpu
from tests.support.processes import captured


def test_redaction_changes_nothing_but_uuids(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().user_space().gpu(0).gpu(1)
    host.instance(1, 7, 0, (66, 67))
    nvml = FakeNvml(gpus=(nvml_gpu(0), nvml_gpu(1, instances=((7, 0),))))
    taken = record.record(host.roots, host.options(nvml))
    specs = []
    for number, snapshot in enumerate(
        (document.redacted(taken, keep_uuids=True), document.redacted(taken))
    ):
        document.save(snapshot, str(tmp_path / f"{number}.tar.gz"))
        with replay.opened(str(tmp_path / f"{number}.tar.gz")) as opened:
            specs.append(replay.spec(opened)[0])

    kept, made_up = (
        {
            json.dumps(device["containerEdits"]): device["name"].partition("-")[0]
            for device in sorted(spec["devices"], key=lambda device: device["name"][:3])
        }
        for spec in specs
    )

    assert kept == made_up
    assert specs[0]["containerEdits"] == specs[1]["containerEdits"]
    assert specs[0] != specs[1]


def replayed(tmp_path: Path, host: HostTree, nvml: FakeNvml | None = None) -> str:
    path = str(tmp_path / "snap.tar.gz")
    options = host.options(nvml)
    document.save(document.redacted(record.record(host.roots, options)), path)
    return path


def test_a_bug_is_replayed_with_the_paths_of_its_host(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    host.write("proc/driver/nvidia/version", "NVRM version: Kernel Module  999.1\n")
    path = replayed(tmp_path, host)

    with replay.opened(path) as opened, pytest.raises(DriverNotFoundError) as raised:
        opened.inventory()

    assert opened.on_host(raised.value.message).startswith(
        f"kernel module is 999.1, but {host.driver} has libraries of {VERSION}"
    )


def test_an_nvml_error_is_replayed(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space().instance(0, 1, 0, (12, 13))
    error = NvmlError("nvmlInit failed: driver/library version mismatch", hint="reboot")

    with replay.opened(replayed(tmp_path, host, FakeNvml(error=error))) as opened:
        warnings = opened.inventory().warnings

    assert any("driver/library version mismatch" in warning for warning in warnings)


def test_unknown_fields_of_a_report_are_ignored(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    path = str(tmp_path / "snap")
    options = DiscoveryOptions(nvml=FakeNvml(gpus=(nvml_gpu(0),)), stat_node=host.stat_node)
    taken = record.record(host.roots, options)
    taken.nvml["report"]["gpus"][0]["sponge"] = 1
    document.save(taken, path)

    with replay.opened(path) as opened:
        source = opened.options.nvml
        assert isinstance(source, replay.RecordedNvml)
        assert source.report().gpus == (nvml_gpu(0),)


def test_the_headers_cache_and_sockets_are_laid_out(tmp_path: Path) -> None:
    from nvct.host.driver.tree import Tree
    from nvct.linux import ldcache

    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    host.library("libcuda", "libcuda.so.1", folder="usr/lib/i386-linux-gnu")
    cached = f"/{LIB}/libcuda.so.1"
    host.write("driver/etc/ld.so.cache", ldcache.merge(
        None, [("libcuda.so.1", cached), ("libc.so.6", "/lib/libc.so.6")], machine="x86_64"
    ))  # fmt: skip
    (host.base / "run/nvidia-persistenced").mkdir(parents=True)
    os.mknod(host.base / "run/nvidia-persistenced/socket", 0o140666)

    with replay.opened(replayed(tmp_path, host)) as opened:
        files = {file.container_path: file for file in opened.inventory().files}
        with Tree(f"{opened.tree}/driver") as root:
            cache = root.linker_cache()
            assert cache
            assert [entry[:2] for entry in cache.entries] == [("libcuda.so.1", cached)]

    assert files[f"/{LIB}/libcuda.so.{VERSION}"].soname == "libcuda.so.1"
    assert "/run/nvidia-persistenced/socket" in files


def test_a_library_of_another_machine_keeps_its_machine(tmp_path: Path) -> None:
    from nvct.linux import elf

    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    data = bytearray((host.base / f"driver/{LIB}/libcuda.so.{VERSION}").read_bytes())
    data[18:20] = (243).to_bytes(2, "little")
    host.write(f"driver/{LIB}/libnvidia-x.so.{VERSION}", bytes(data))

    with replay.opened(replayed(tmp_path, host)) as opened:
        library = f"{opened.tree}/driver/{LIB}/libnvidia-x.so.{VERSION}"
        with open(library, "rb") as file:
            assert elf.Elf(file.fileno()).machine == "riscv"


def test_the_command_prints_the_spec_and_warnings(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    (host.base / "dev/nvidia-uvm").unlink()

    done = CliRunner().invoke(sim, ["replay", replayed(tmp_path, host)], catch_exceptions=False)

    assert done.exit_code == 0
    assert "\nkind: nvidia.com/gpu\n" in done.stdout
    assert f"hostPath: {host.driver}/{LIB}/libcuda.so.{VERSION}\n" in done.stdout
    assert f"warning: {host.base}/dev/nvidia-uvm is not a device node" in done.stderr


def test_the_command_names_the_hosts_paths_in_errors(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host")
    host.driver.mkdir(parents=True)

    with pytest.raises(DriverNotFoundError) as raised:
        CliRunner().invoke(sim, ["replay", replayed(tmp_path, host)], catch_exceptions=False)

    assert f"{host.driver}" in raised.value.message


@pytest.mark.parametrize(
    ("root", "text", "expected"),
    [
        ("/", "{}/driver", "/"),
        ("/", "in {}/driver: {}/driver/usr/x", "in /: /usr/x"),
        ("/run/nvidia/driver", "{}/driver {}/driver/x", "/run/nvidia/driver /run/nvidia/driver/x"),
        ("/", "{}/dev/nvidia0, {}/proc/devices", "/dev/nvidia0, /proc/devices"),
    ],
)
def test_the_trees_paths_become_those_of_the_host(root: str, text: str, expected: str) -> None:
    names = {"driver_root": root, "proc": "/proc", "sys": "/sys", "etc": "/etc", "run": "/run"}
    recorded = document.Snapshot(about={"roots": names, "dev": "/dev"})

    assert replay.Replay("/tmp/t", recorded).on_host(text.format("/tmp/t", "/tmp/t")) == expected


@pytest.mark.parametrize("before", [[], ["--"]])
def test_a_program_of_nvct_looks_at_the_snapshot(tmp_path: Path, before: list[str]) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    code = "from nvct.cli.main import run; run('nvidia-ctk')"
    words = [sys.executable, "-c", code, "cdi", "generate", "--nvidia-cdi-hook-path=/hook"]
    inner = "import sys; from nvct.cli.sim import sim; sim(sys.argv[1:])"

    done = captured(
        [sys.executable, "-c", inner, "replay", replayed(tmp_path, host), *before, *words],
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert f"containerPath: /{LIB}/libcuda.so.{VERSION}" in done.stdout


def test_replay_of_a_missing_program_ends_as_in_a_shell(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    words = ["replay", replayed(tmp_path, host), "nosuchprogram"]

    with pytest.raises(UsageError, match="cannot run 'nosuchprogram': No such file") as caught:
        CliRunner().invoke(sim, words, catch_exceptions=False)

    assert caught.value.exit_status == 127


def test_nvct_snapshot_records_the_host_of_the_configuration(tmp_path: Path) -> None:
    host = HostTree(tmp_path / "host").module().gpu(0).user_space()
    config = host.write(
        "config.toml",
        f'[nvidia-container-cli]\nroot = "{host.driver}"\n[nvct]\ndev-root = "{host.base}"\n'
        f'proc-root = "{host.base}/proc"\nsys-root = "{host.base}/sys"\nplain-nodes = true\n',
    )
    path = tmp_path / "bug.tar.gz"
    argv = ["--config", str(config), "snapshot", "--no-nvml", "-o", str(path)]

    done = invoke("nvct", argv, catch_exceptions=False)

    assert done.exit_code == 0
    assert done.stderr.startswith(f"wrote {path}: ")
    assert done.stderr.endswith("discovery: mode nvml\n")
    assert host.uuid(0) not in "".join(document.load(str(path)).texts.values())
    streamed = invoke("nvct", [*argv[:-1], "-"], catch_exceptions=False)
    assert streamed.stdout_bytes == path.read_bytes()
