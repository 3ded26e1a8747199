# SPDX-License-Identifier: Apache-2.0
"""Constants for well-known paths, names and words. Imports nothing: the hot side uses it.

Values that users rely on are those of the incumbent (nvidia-container-toolkit v1.20).
"""

CDI_STATIC_DIR = "/etc/cdi"
CDI_DYNAMIC_DIR = "/var/run/cdi"
CDI_SPEC_DIRS = (CDI_STATIC_DIR, CDI_DYNAMIC_DIR)

CONFIG_FILE = "/etc/nvidia-container-runtime/config.toml"
CONFIG_NAME = "nvidia-container-runtime/config.toml"
CONFIG_ENV = "NVIDIA_CTK_CONFIG_FILE_PATH"
OWN_CONFIG_ENV = "NVCT_CONFIG_FILE_PATH"
"""Only for `nvidia-container-cli configure`: its NVIDIA_* variables can come from an image."""

RUN_DIR = "/run/nvct"
RUN_DIR_ENV = "NVCT_RUN_DIR"
AGENT_DIR = "/run/nvct-agent"
"""The agent's folder, outside RUN_DIR: the agent must not write the plans that the shim trusts."""
NRI_DIR = "/run/nvct-nri"  # The NRI plugin's: who has which GPU, and its part of `nvct log`
LEASE_DIR = "/run/nvct_leases"  # For `nvct.container.leases`: every user can make files there
CONFIG_CACHE = "config.json"
LAUNCHER_CONF = "launcher.conf"
PLAN_SUFFIX = ".plan"
REGISTRY_PLAN = "registry.plan"
OWN_PLAN = "own.plan"
OWN_SPEC = "nvidia.com-gpu.json"
LOCK_FILE = "lock"

FARM_DIR = "/var/lib/nvct/farm"
STATE_DIR = "/var/lib/nvct/engines"  # journals of changes of engines' files

COMPAT_FOLDER = "/usr/local/cuda/compat"
"""The folder of forward compatibility libraries in CUDA images."""

SIM_DEV_ENV = "NVCT_SIM_DEV"
"""The folder of device nodes for the simulated NVML, if no node is attached (nvct_sim)."""

GPU_KIND = "nvidia.com/gpu"  # The CDI kind of NVIDIA GPUs

HOOK_PROGRAM = "nvidia-cdi-hook"
HOOK_PATH = "/usr/bin/nvidia-cdi-hook"
SHIM_PROGRAM = "nvidia-container-runtime"
SHIM_PROGRAMS = (SHIM_PROGRAM, f"{SHIM_PROGRAM}.cdi", f"{SHIM_PROGRAM}.legacy")
RUNTIME_HOOK_PROGRAM = "nvidia-container-runtime-hook"
RUNTIME_HOOK_ALIAS = "nvidia-container-toolkit"
"""The older name of RUNTIME_HOOK_PROGRAM; packages install both."""
CTK_PROGRAM = "nvidia-ctk"
CONTAINER_CLI_PROGRAM = "nvidia-container-cli"

TRUE = ("1", "t", "T", "true", "True", "TRUE")
FALSE = ("0", "f", "F", "false", "False", "FALSE")
"""TRUE and FALSE are the words that Go's strconv.ParseBool accepts."""

DEFAULT_PATH_DIRS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)

VOLUME_MOUNT_ROOT = "/var/run/nvidia-container-devices"
