# SPDX-License-Identifier: Apache-2.0
"""HTTP of agent and exporter: server, TLS, users, pages, Prometheus' text format."""
