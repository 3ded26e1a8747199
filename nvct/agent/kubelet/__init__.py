# SPDX-License-Identifier: Apache-2.0
"""The kubelet's services: `.proto` files, the modules made of them, methods."""
