# SPDX-License-Identifier: Apache-2.0
"""The prestart hook: delivers GPUs into a container that exists but has not started.

Hot. Docker's `--gpus` before its CDI support, and the hooks.d of CRI-O and Podman, call it. The
shim's resolver reads the request with the rules of mode legacy, and the edits come from the
shim's plans. Only the delivery differs: mounts, device nodes, device rules and files go into the
live namespaces. A hook cannot deliver environment variables (those of the plans are only for
engines and for the driver's tools), additional groups of the process (users other than root need
them for /dev/dri), further hooks, network devices and RDT classes. Edits with one of the last
three are refused, never shortened; NVIDIA's own devices need none of those.
"""
