# SPDX-License-Identifier: Apache-2.0
"""`nvct install` on a host from a DaemonSet, and its undoing; the status files of `validate`."""
