# SPDX-License-Identifier: Apache-2.0
"""What the cold side has of the kernel: inotify, its messages, rights; folders shared with others."""
