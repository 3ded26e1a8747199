# SPDX-License-Identifier: Apache-2.0
"""The create lane from a command line to config.json, on a host of plain files."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nvct import paths
from nvct.container import recorder
from nvct.version import TOOLKIT_VERSION, __version__
from tests.support.launcher import script
from tests.support.shim_lab import Lab

ALL = "NVIDIA_VISIBLE_DEVICES=all"
PROGRAM = "nvidia-container-runtime"


def cdi(name: str) -> dict[str, str]:
    return {"cdi.k8s.io/x": name}


def created(lab: Lab, *flags: str, program: str = "nvidia-container-runtime") -> None:
    """Run a create; it must succeed and pass all arguments to the runtime."""
    result = lab.create(*flags, program=program)
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout == " ".join(
        ["runc", *flags, "create", "--bundle", str(lab.bundle), "x\n"]
    )


def counting(lab: Lab) -> Path:
    """Make the cold interpreter record its tasks in a file; return the file."""
    calls = lab.home / "calls"
    calls.touch()
    body = f'shift 3; echo "$1" >> {calls}; exec {lab.cold} -I -m nvct.compile "$@"\n'
    lab.cold = str(script(lab.home / "bin/python", body))
    return calls


def identity(path: Path) -> tuple[int, int, bytes]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, path.read_bytes()


@pytest.mark.parametrize("word", ["0", "none", "all"])
def test_a_driver_that_is_too_old_for_the_image_fails_the_create(lab: Lab, word: str) -> None:
    lab.driver()
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={word}", "NVIDIA_REQUIRE_CUDA=cuda>=13.5 driver>=600")
    before = identity(lab.config_json)

    result = lab.create()

    assert result.status == 1
    assert "does not meet NVIDIA_REQUIRE_CUDA='cuda>=13.5 driver>=600'" in result.stderr
    assert "the driver has CUDA 13.0" in result.stderr
    assert identity(lab.config_json) == before
    lab.asks(ALL, "NVIDIA_REQUIRE_CUDA=cuda>=13.5 driver>=580")
    created(lab)


def test_without_a_spec_gpus_come_from_the_driver(lab: Lab) -> None:
    calls = counting(lab)
    lab.driver(gpus=2)
    lab.asks("NVIDIA_VISIBLE_DEVICES=1")

    created(lab)

    assert calls.read_text().split() == ["config", "own"]
    document = lab.document()
    nodes = [node["path"] for node in document["linux"]["devices"]]
    assert "/dev/nvidia1" in nodes
    assert "/dev/nvidia0" not in nodes
    assert "/dev/nvidiactl" in nodes
    assert lab.container_env()[0] == "NVIDIA_VISIBLE_DEVICES=void"
    assert "hooks" not in document
    assert sorted(os.listdir(lab.run_dir)) == [
        paths.CONFIG_CACHE, recorder.NAME, paths.LAUNCHER_CONF, paths.LOCK_FILE, paths.OWN_SPEC,
        paths.OWN_PLAN,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["nvidia.com/gpu", "acme.com/nic"])
def test_a_cdi_name_is_looked_up_in_the_spec_folders_else_in_nvcts_own_plan(
    kind: str, lab: Lab
) -> None:
    lab.driver()
    lab.spec(kind=kind)
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))

    created(lab)

    if kind == "nvidia.com/gpu":
        assert lab.container_env() == ["COMMON=1", "GPU=0"]
    else:
        assert "/dev/nvidia0" in [node["path"] for node in lab.document()["linux"]["devices"]]


@pytest.mark.parametrize("value", ["config", "program"])
def test_in_mode_cdi_an_index_is_a_device_of_the_default_kind(value: str, lab: Lab) -> None:
    lab.configure(mode="cdi" if value == "config" else "auto")
    lab.spec()
    lab.asks("NVIDIA_VISIBLE_DEVICES=1")
    suffix = ".cdi" if value == "program" else ""

    created(lab, program=f"nvidia-container-runtime{suffix}")

    assert lab.container_env() == ["NVIDIA_VISIBLE_DEVICES=1", "COMMON=1", "GPU=1"]


def test_a_second_create_starts_no_cold_side(lab: Lab) -> None:
    calls = counting(lab)
    lab.spec()
    for _ in range(2):
        lab.asks(annotations=cdi("nvidia.com/gpu=0"))
        created(lab)

    assert calls.read_text().split() == ["config", "registry"]


def test_another_config_toml_has_another_plan(lab: Lab) -> None:
    lab.spec()
    lab.spec(folder="cdi2", devices={"0": {"env": ["GPU=higher"]}})
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))
    created(lab)
    other = lab.home / "other.toml"
    only = lab.config_toml.read_text().replace(f', "{lab.home}/cdi2"', "")
    other.write_text(only)
    lab.env[paths.CONFIG_ENV] = str(other)
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))

    created(lab)

    assert "GPU=0" in lab.container_env()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_container_gets_the_permissions_that_the_node_has_now(lab: Lab) -> None:
    node = lab.home / "node"
    os.mknod(node, stat.S_IFCHR, os.makedev(0, 0))  # of overlayfs, which nobody is refused
    lab.driver(gpus=1)
    lab.spec(devices={"0": {"deviceNodes": [{"path": "/dev/x", "hostPath": str(node)}]}})
    modes = []
    for mode in (0o666, 0o660):
        node.chmod(mode)
        lab.asks(annotations=cdi("nvidia.com/gpu=0"))
        created(lab)
        modes.append(lab.document()["linux"]["devices"][0]["fileMode"])

    assert modes == [0o666, 0o660]


def test_a_device_that_never_stops_changing_is_an_error(lab: Lab) -> None:
    plan = {
        "nvct-plan": 1, "config": str(lab.config_toml), "facts": [], "kinds": ["acme.com/nic"],
        "specs": [{"path": "/a", "facts": [], "edits": {}, "refuse": ""}], "edits": [{}],
        "devices": {"acme.com/nic=0": {"spec": 0, "edits": 0, "refuse": "",
                                       "facts": [["node", "/dev/null", 1]]}},
        "problems": [], "conflicts": {},
    }  # fmt: skip
    (lab.home / "plan").write_text(json.dumps(plan))
    body = f'case $4 in config) exec {lab.cold} "$@";; esac; cat {lab.home}/plan\n'
    lab.cold = str(script(lab.home / "bin/python", body))
    lab.asks(annotations=cdi("acme.com/nic=0"))

    result = lab.create()

    assert result.status == 1
    assert "acme.com/nic=0 keeps changing while it is being read" in result.stderr


def test_feature_flags_without_effect_are_in_the_shims_log(lab: Lab) -> None:
    lab.driver()
    lab.keys["nvidia-container-runtime.modes.jit-cdi"] = {
        "nvcdi-feature-flags": ["no-such-flag", "disable-ipc-discoverer"]
    }
    lab.configure(debug=f"{lab.home}/log")
    for _ in range(2):
        lab.asks("NVIDIA_VISIBLE_DEVICES=0")
        created(lab)

    text = (lab.home / "log").read_text()
    assert text.count("feature flag 'no-such-flag' is unknown and has no effect") == 2
    assert "'disable-ipc" not in text


MISSPELT = [
    ("NVIDIA_VISIBLE_DEVICES=7", "has no device '7'", "unknown-device"),
    ("NVIDIA_VISIBLE_DEVICES=0,GPU-00000000-0000-0000-0000-000000000000", "has no dev",
     "unknown-device"),
    ("NVIDIA_VISIBLE_DEVICES=al", "names no device", "bad-request"),
    ("NVIDIA_VISIBLE_DEVICES=acme.com/gpu=0", "no CDI spec defines", "unknown-device"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("env", "message", "code"), MISSPELT, ids=[case[0][23:34] for case in MISSPELT]
)
def test_a_misspelt_device_is_reported_as_unknown_and_not_as_denied(
    env: str, message: str, code: str, lab: Lab
) -> None:
    lab.driver(gpus=2)
    lab.keys["nvct.policy"] = {"default": "deny"}
    lab.configure()
    lab.asks(env)

    result = lab.create()

    assert (result.status, result.stdout) == (1, "")
    assert message in result.stderr
    assert f"[{code}]" in result.stderr
    assert "denies" not in result.stderr


@pytest.mark.parametrize("has_driver", [True, False])
def test_an_existing_device_is_reported_as_denied(lab: Lab, *, has_driver: bool) -> None:
    if has_driver:
        lab.driver(gpus=2)
    lab.keys["nvct.policy"] = {"default": "deny"}
    lab.configure()
    lab.asks("NVIDIA_VISIBLE_DEVICES=1")

    assert "policy rule 'default' denies NVIDIA_VISIBLE_DEVICES='1'" in lab.create().stderr


@pytest.mark.parametrize("mode", ["legacy", "csv", "auto", "cdi"])
@pytest.mark.parametrize("device", ["acme.com/nic=0", "acme.com/nic=all"])
def test_a_policy_distinguishes_a_device_from_a_gpu_of_the_same_name(
    device: str, mode: str, lab: Lab
) -> None:
    lab.driver(gpus=2)
    nodes: dict[str, object] = {"env": ["NIC=1"]}
    lab.spec("nic.json", kind="acme.com/nic", devices={"0": nodes, "all": {"env": ["NIC=all"]}})
    lab.keys["nvct.policy"] = {"default": "deny"}
    lab.keys["[nvct.policy.rules]"] = {"devices": ["nvidia.com/gpu=*"], "then": "allow"}
    lab.configure(mode=mode)
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={device}")

    assert "policy rule 'default' denies" in lab.create().stderr


@pytest.mark.parametrize("key", ["devices", "specs", "edits", "facts", "farm"])
def test_an_emptied_plan_is_compiled_again(key: str, lab: Lab) -> None:
    lab.driver()
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")
    created(lab)
    good = lab.document()
    path = lab.run_dir / paths.OWN_PLAN
    plan = lab.kept(paths.OWN_PLAN)
    head = json.loads(path.read_text(encoding="utf-8").partition("\n")[0])
    emptied = {"sum": head["sum"], **plan, key: type(plan.get(key, {}))()}
    path.write_text(json.dumps(emptied), encoding="utf-8")
    lab.asks("NVIDIA_VISIBLE_DEVICES=0")

    created(lab)

    assert lab.document() == good


@pytest.mark.parametrize("key", ["facts", "farm"])
def test_malformed_fingerprints_cost_only_time(key: str, lab: Lab) -> None:
    lab.driver()
    lab.asks("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0")
    created(lab)
    good = lab.document()
    plan = lab.kept(paths.OWN_PLAN)
    for text in ("{}", '"x"'):
        lab.keep(paths.OWN_PLAN, {**plan, key: json.loads(text)})
        lab.asks("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0")

        created(lab)

        assert lab.document() == good


def break_config(lab: Lab) -> None:
    lab.configure("runtimes = [")


def break_cold(lab: Lab) -> None:
    lab.cold = "/no/python"


def crash_cold(lab: Lab) -> None:
    lab.cold = "/bin/false"


@pytest.mark.parametrize("trouble", [break_config, break_cold, crash_cold])
def test_an_invalid_configuration_fails_only_containers_with_a_request(
    trouble: Any, lab: Lab
) -> None:
    lab.driver()
    trouble(lab)
    lab.env["PATH"] = f"{lab.home}/bin:{lab.env['PATH']}"
    lab.asks()
    before = identity(lab.config_json)

    created(lab)
    state = lab.shim(["state", "x"])
    untouched = identity(lab.config_json) == before
    lab.asks(ALL)
    refused = lab.create()

    assert untouched
    assert (state.status, state.stdout) == (0, "runc state x\n")
    assert refused.status == 1
    assert refused.stdout == ""


def test_version_prints_both_versions(lab: Lab) -> None:
    result = lab.shim(["--version"])

    assert result.stdout.splitlines() == [
        f"NVIDIA Container Runtime version {TOOLKIT_VERSION}",
        f"nvct: {__version__}",
        "",
        "runc --version",
    ]


def test_the_bundle_is_the_working_directory_by_default(lab: Lab) -> None:
    lab.spec()
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))
    (lab.home / "config.json").write_bytes(lab.config_json.read_bytes())

    result = lab.shim(["run", "x"])

    assert result.status == 0
    assert "GPU=0" in (lab.home / "config.json").read_text()


def debug_log(lab: Lab, level: str = "info") -> Path:
    path = lab.home / "debug.log"
    lab.keys["nvidia-container-runtime"]["log-level"] = level
    lab.configure(debug=str(path))
    return path


def test_with_params_mask_true_the_hook_stays(lab: Lab) -> None:
    lab.keys["nvct"]["params-mask"] = "true"
    lab.configure()
    lab.driver()
    lab.asks("NVIDIA_VISIBLE_DEVICES=1")

    created(lab)

    (hook,) = lab.document()["hooks"]["createContainer"]
    assert hook["path"] == str(lab.hook)
    assert "--mask-params" in hook["args"]


LEGACY = "nvidia-container-runtime.modes.legacy"


@pytest.mark.parametrize(
    ("mode", "value", "features", "has_compat"),
    [
        ("auto", "ldconfig", [], True),
        ("auto", "ldconfig", ["disable-cuda-compat-lib-hook"], False),
        ("jit-cdi", "ldconfig", ["disable-cuda-compat-lib-hook"], False),
        ("auto", "disabled", [], True),  # a key of mode legacy alone
        ("legacy", "ldconfig", [], True),
        ("legacy", "mount", [], True),
        ("legacy", "hook", [], True),
        ("legacy", "disabled", [], False),
        ("legacy", "hook", ["disable-cuda-compat-lib-hook"], False),
        ("legacy", "ldconfig", ["disable-cuda-compat-lib-hook"], True),  # no hook of that name
        ("legacy", "", [], False),
        ("legacy", "other", [], False),
        ("legacy", "other", ["allow-cuda-compat-libs-from-container"], True),
        ("legacy", "disabled", ["allow-cuda-compat-libs-from-container"], False),
    ],
)
def test_config_toml_decides_about_cuda_compatibility_libraries(
    mode: str, value: str, features: list[str], *, has_compat: bool, lab: Lab
) -> None:
    lab.keys["nvct"]["params-mask"] = "true"  # keeps the hook, to inspect its arguments
    lab.keys[LEGACY] = {"cuda-compat-mode": value}
    lab.keys["features"] = dict.fromkeys(features, True)
    lab.configure(mode=mode)
    lab.driver()
    lab.asks(ALL)

    created(lab)

    (hook,) = lab.document()["hooks"]["createContainer"]
    options = [arg for arg in hook["args"] if arg.startswith("--host-driver-version=")]
    assert bool(options) is has_compat
    assert "--mask-params" in hook["args"]
    assert "--folder" in hook["args"]


def test_the_debug_file_gets_one_line_for_each_create_and_none_for_other_commands(
    lab: Lab,
) -> None:
    log = debug_log(lab)
    lab.spec(common={"env": ["A=1"], "mounts": [{"hostPath": "/etc", "containerPath": "/x"}]})
    lab.asks(annotations=cdi("nvidia.com/gpu=1"))
    lab.create()
    lab.shim(["state", "x"])
    lab.asks()

    lab.create("--log-format=json")

    first, second = log.read_text().splitlines()
    text = "annotation cdi.k8s.io/x asks for nvidia.com/gpu=1; mode cdi: 0 nodes, 1 mounts, 0"
    assert first.endswith(f'level=info msg="{PROGRAM}: create of {lab.bundle}: {text} hooks"')
    assert json.loads(second)["msg"].endswith(f"{lab.bundle}: asks for no GPU")


def test_the_debug_file_says_why_a_create_failed(lab: Lab) -> None:
    log = debug_log(lab, "error")
    lab.spec()
    lab.asks(annotations=cdi("nvidia.com/gpu=0"))
    lab.create()
    lab.asks(annotations=cdi("nvidia.com/gpu=7"))

    result = lab.create("--log", str(log))

    (entry,) = log.read_text().splitlines()
    assert "level=error" in entry
    assert result.stderr.strip() in entry.replace('\\"', '"')
