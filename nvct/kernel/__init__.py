# SPDX-License-Identifier: Apache-2.0
"""The kernel for the cold side: inotify, messages, rights; folders that others may change."""
