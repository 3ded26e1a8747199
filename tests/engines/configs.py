# SPDX-License-Identifier: Apache-2.0
"""Content of the engines' files before `nvct runtime` changes them, as people write it."""

PAUSE = "registry.local/pause:test"
"""The image of pods' sandboxes."""
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}\n'

DOCKER = """\
{
	"log-opts": {"max-size": "10m"}, "log-driver": "json-file",
	"bridge": "none", "cgroup-parent": "/%s",
    "iptables": false,   "ip6tables": false,
	"ip-forward": false, "ip-masq": false,
	"features": {"buildkit": true},
	"runtimes": {"mine": {"path": "/usr/sbin/runc"}}
}"""

CONTAINERD = {
    1: """\
# Written by an installer.
oom_score = 0

[plugins]
  [plugins.cri]
  sandbox_image = "%s"   # from our own archive
  restrict_oom_score_adj = true
    [plugins.cri.containerd]
      snapshotter = "overlayfs"
""",
    2: """\
# Written by an installer.
version = 2
oom_score = 0

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s"   # from our own archive
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".containerd]
    # The default one.
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

# Ours ends here.
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
""",
    3: """\
version = 3

[plugins]
  [plugins.'io.containerd.cri.v1.images']
    [plugins.'io.containerd.cri.v1.images'.pinned_images]
      sandbox = '%s' # from our own archive
  [plugins.'io.containerd.cri.v1.runtime']
    restrict_oom_score_adj = true
    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      default_runtime_name = 'runc'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
        runtime_type = 'io.containerd.runc.v2'
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
          SystemdCgroup = false
  [plugins.'io.containerd.internal.v1.opt']
    path = '/var/lib/containerd/opt'
""",
}

PODMAN = """\
# What this machine allows.
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
pids_limit = 0
netns = "none"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""

CRIO = """\
# Written by an installer.
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"

[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = "%s"
pause_command = "/bin/sleep 2147483"
signature_policy = "/etc/crio/policy.json"

[crio.network]
plugin_dirs = ["/usr/lib/cni"]
"""
