# SPDX-License-Identifier: Apache-2.0
"""The prestart hook: the GPUs into a container that is already there but has not started.

Hot. What Docker's `--gpus` before its CDI support, CRI-O's and Podman's hooks.d call. The request
is read by the shim's resolver with the rules of mode legacy, and the edits are the shim's, of the
same plans; only the delivery is another one: mounts, device nodes, device rules and files go into
the live namespaces. A hook cannot do the rest: variables of the environment (the plans' own are
only for engines and for the driver's tools), additional groups of the process (who is not root
needs them for /dev/dri), further hooks, network devices and RDT classes. Edits with one of the
last three are refused, never cut short; NVIDIA's own devices need none of those.
"""
