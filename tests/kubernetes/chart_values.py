# SPDX-License-Identifier: Apache-2.0
"""Values of NVIDIA's charts with their defaults: what somebody passes who copied `helm show values`.

Facts of the charts nvidia-device-plugin 0.9.0 and 0.20, and gpu-feature-discovery 0.8. The image is nvct's, and the
affinity to labels of Node Feature Discovery is left out.
"""

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

COMMON: Values = {
    "nameOverride": "", "fullnameOverride": "", "imagePullSecrets": [], "podSecurityContext": {},
    "resources": {}, "nodeSelector": {}, "affinity": {},
}  # fmt: skip
TOLERATIONS = [
    {"key": "CriticalAddonsOnly", "operator": "Exists"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
]
PLUGIN_0_9: Values = {
    **COMMON,
    "legacyDaemonsetAPI": False, "compatWithCPUManager": False, "migStrategy": "none",
    "failOnInitError": True, "deviceListStrategy": "envvar", "deviceIDStrategy": "uuid",
    "nvidiaDriverRoot": "/", "namespace": "kube-system", "tolerations": TOLERATIONS,
    "updateStrategy": {"type": "RollingUpdate"}, "securityContext": {},
}  # fmt: skip
PLUGIN_0_20: Values = {
    **COMMON,
    "config": {
        "name": "", "map": {}, "default": "", "fallbackStrategies": ["named", "single"]
    },
    "compatWithCPUManager": None, "migStrategy": None, "failOnInitError": None,
    "deviceListStrategy": None, "deviceIDStrategy": None, "nvidiaDriverRoot": None,
    "gdrcopyEnabled": None, "gdsEnabled": None, "mofedEnabled": None,
    "deviceDiscoveryStrategy": None, "namespaceOverride": "", "selectorLabelsOverride": {},
    "componentSelectorLabels": {"enabled": False}, "allowDefaultNamespace": False,
    "updateStrategy": {"type": "RollingUpdate"}, "podAnnotations": {}, "securityContext": {},
    "tolerations": TOLERATIONS, "priorityClassName": "system-node-critical",
    "runtimeClassName": None,
    "devicePlugin": {
        "enabled": True,
        "containers": {"main": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
    },
    "gfd": {
        "enabled": False, "nameOverride": "gpu-feature-discovery", "namespaceOverride": "",
        "noTimestamp": None, "sleepInterval": None, "securityContext": {"privileged": True},
    },
    "nfd": {"nameOverride": "node-feature-discovery", "master": {}, "worker": {}},
    "mps": {"root": "/run/nvidia/mps", "enableHostPID": True},
    "cdi": {"nvidiaHookPath": None, "featureFlags": None},
}  # fmt: skip
GFD: Values = {
    **COMMON,
    "failOnInitError": True, "migStrategy": "none", "noTimestamp": False, "sleepInterval": "60s",
    "namespace": "node-feature-discovery", "selectorLabelsOverride": {},
    "allowDefaultNamespace": False, "updateStrategy": {"type": "RollingUpdate"},
    "podAnnotations": {}, "securityContext": {"privileged": True}, "tolerations": TOLERATIONS,
    "priorityClassName": "system-node-critical", "runtimeClassName": None,
    "nfd": {"deploy": False}, "node-feature-discovery": {"master": {}, "worker": {}},
}  # fmt: skip
