# SPDX-License-Identifier: Apache-2.0
"""`nvct convert`: reads, changes and writes pods in manifests of any kind."""
