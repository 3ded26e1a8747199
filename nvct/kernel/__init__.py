# SPDX-License-Identifier: Apache-2.0
"""Kernel interfaces of the cold side: inotify, kmsg, rights; folders that others can change."""
