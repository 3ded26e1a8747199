# SPDX-License-Identifier: Apache-2.0
"""`nvct convert`: pods in manifests of any kind, read, changed and written."""
