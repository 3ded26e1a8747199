# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-container-runtime`: the decision into config.json and the root, then runc."""
