# SPDX-License-Identifier: Apache-2.0
"""The settings of the DRA driver, after command line and environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from nvct.agent.device_plugin import settings as device_plugin
from nvct.agent.mps.place import DEFAULT_ROOT
from nvct.paths import CDI_DYNAMIC_DIR, HOOK_PATH

REGISTRY = "/var/lib/kubelet/plugins_registry"
PLUGINS = "/var/lib/kubelet/plugins"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"

EXISTING, ON_DEMAND = "existing", "on-demand"
"""MIG devices that exist; or those that a GPU could have, made when a claim is prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; the names and defaults are those of the options.

    Attributes:
        node_name: "" is the host's name.
        cdi_root: the folder of CDI specifications.
        driver_root: on the host.
        dev_root: the root with /dev, on the host; "" is the driver's root.
        container_driver_root: where the driver root is mounted here.
        hook_path: of the hook program on the host.
        registry: the kubelet's folder of registration sockets.
        plugins: the kubelet's folder of plugins' own files.
        pod_uid: part of the sockets' names, so that two pods do not share them.
        mig: which MIG devices are offered.
        mps_root: the folder of MPS on the host.
        excluded: GPUs that Kubernetes does not get: indices, UUIDs, and patterns of models.
    """

    node_name: str = ""
    cdi_root: str = CDI_DYNAMIC_DIR
    driver_root: str = "/"
    dev_root: str = ""
    container_driver_root: str = "/driver-root"
    hook_path: str = HOOK_PATH
    registry: str = REGISTRY
    plugins: str = PLUGINS
    pod_uid: str = ""
    mig: str = EXISTING
    mps_root: str = DEFAULT_ROOT
    kubeconfig: str = ""
    excluded: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """Return the name of the Node."""
        return self.node_name or os.uname().nodename

    @property
    def pod_resources(self) -> str:
        """Return the path of the kubelet's socket for pods' resources."""
        own = f"{os.path.dirname(self.plugins)}/pod-resources/kubelet.sock"
        return own if os.path.exists(own) else POD_RESOURCES

    @property
    def specs(self) -> device_plugin.Settings:
        """Return the settings for CDI specifications, which are the device plugin's."""
        return device_plugin.Settings(
            driver_root=self.driver_root,
            dev_root=self.dev_root or self.driver_root,
            container_driver_root=self.container_driver_root,
            hook_path=self.hook_path,
        )
