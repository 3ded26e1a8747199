# SPDX-License-Identifier: Apache-2.0
"""Runc's and crun's command lines, JSON edited in place, the bundle."""
