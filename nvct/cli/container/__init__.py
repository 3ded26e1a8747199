# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-container-cli`, as enroot and Apptainer call it."""
