# SPDX-License-Identifier: Apache-2.0
"""The kubelet's gRPC services: messages (`kubelet.proto`), methods, sockets."""
