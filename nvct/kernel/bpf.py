# SPDX-License-Identifier: Apache-2.0
"""Device programs of cgroup v2, for the cold side: bpf(2)."""

from __future__ import annotations

from nvct.kernel.library import call, ffi, lib, system_call

MAX_PROGRAMS = 64


def query(cgroup_fd: int) -> tuple[int, list[int]]:
    """Return the attach flags of a cgroup's own device programs, and their ids.

    Raises:
        OSError: without a path.
    """
    ids = ffi.new("uint32_t[]", MAX_PROGRAMS)
    attributes = ffi.new("union bpf_attr *")
    query = attributes.query
    query.target_fd, query.attach_type = cgroup_fd, lib.BPF_CGROUP_DEVICE
    query.prog_ids, query.prog_cnt = int(ffi.cast("uintptr_t", ids)), MAX_PROGRAMS
    call(system_call("bpf"), lib.BPF_PROG_QUERY, attributes, ffi.sizeof(attributes[0]))
    return query.attach_flags, list(ids[0 : query.prog_cnt])
