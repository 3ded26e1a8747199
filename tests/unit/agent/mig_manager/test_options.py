# SPDX-License-Identifier: Apache-2.0
"""Options and variables of nvidia-mig-manager: those of NVIDIA's program, v0.15.0, and two more."""

import pytest

from nvct.agent.mig_manager import settings as options
from nvct.agent.mig_manager.settings import Settings
from nvct.errors import UsageError

INCUMBENTS = (
    ("kubeconfig", "", "KUBECONFIG"),
    ("node-name", "n", "NODE_NAME"),
    ("config-file", "f", "CONFIG_FILE"),
    ("reconfigure-script", "s", "RECONFIGURE_SCRIPT"),
    ("host-root-mount", "m", "HOST_ROOT_MOUNT"),
    ("host-nvidia-dir", "i", "HOST_NVIDIA_DIR"),
    ("host-mig-manager-state-file", "o", "HOST_MIG_MANAGER_STATE_FILE"),
    ("host-kubelet-systemd-service", "k", "HOST_KUBELET_SYSTEMD_SERVICE"),
    ("gpu-clients-file", "g", "GPU_CLIENTS_FILE"),
    ("with-reboot", "r", "WITH_REBOOT"),
    ("with-shutdown-host-gpu-clients", "d", "WITH_SHUTDOWN_HOST_GPU_CLIENTS"),
    ("default-gpu-clients-namespace", "p", "DEFAULT_GPU_CLIENTS_NAMESPACE"),
    ("nvidia-driver-root", "t", "NVIDIA_DRIVER_ROOT"),
    ("driver-root", "t", "DRIVER_ROOT"),
    ("driver-root-ctr-path", "a", "DRIVER_ROOT_CTR_PATH"),
    ("cdi-enabled", "", "CDI_ENABLED"),
    ("dev-root", "b", "NVIDIA_DEV_ROOT"),
    ("dev-root-ctr-path", "j", "DEV_ROOT_CTR_PATH"),
    ("nvidia-cdi-hook-path", "", "NVIDIA_CDI_HOOK_PATH"),
)
"""Flag, its short form and its variable: cmd/nvidia-mig-manager/main.go."""


@pytest.mark.parametrize(("flag", "short", "variable"), INCUMBENTS)
def test_every_option_of_nvidias_program_is_understood(
    flag: str, short: str, variable: str
) -> None:
    expected = options.resolve([f"--{flag}=true"], {})
    assert options.resolve([], {variable: "true"}) == expected
    if short:
        assert options.resolve([f"-{short}=true"], {}) == expected
    assert f"--{flag}" in options.PROGRAM.help_text()


def test_settings_of_nvct_itself() -> None:
    assert options.resolve([], {})[0] == Settings()
    env = {"NVCT_MIG_CONFIG_FILE": "/own", "CONFIG_FILE": "/plugins"}
    assert options.resolve([], env)[0].config_file == "/own"
    env = {"NVCT_MIG_DEFAULT_CONFIG": "all-disabled", "NVCT_MIG_EVICT_PODS": "true"}
    assert options.resolve([], env) == options.resolve(
        ["--default-config", "all-disabled", "--evict-pods"], {}
    )


def test_a_malformed_value_is_refused() -> None:
    with pytest.raises(UsageError, match="WITH_REBOOT must be true or false, not 'maybe'"):
        options.resolve([], {"WITH_REBOOT": "maybe"})
