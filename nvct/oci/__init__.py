# SPDX-License-Identifier: Apache-2.0
"""Command lines of runc and crun, JSON edited in place, the bundle."""
