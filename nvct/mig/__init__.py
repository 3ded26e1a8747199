# SPDX-License-Identifier: Apache-2.0
"""MIG: profile tables, configuration files, the search for a layout, its application."""
