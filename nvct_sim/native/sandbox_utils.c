/* SPDX-License-Identifier: Apache-2.0
 *
 * libnvidia-sandboxutils.so.1 of a driver that does not support it: callers fall back to NVML.
 * Names and codes are those of the driver's nvsandboxutils.h.
 */
enum { NOT_SUPPORTED = 2 };

#define REFUSE(name) \
	__attribute__((visibility("default"))) int name(void); \
	int name(void) \
	{ \
		return NOT_SUPPORTED; \
	}

REFUSE(nvSandboxUtilsInit)
REFUSE(nvSandboxUtilsShutdown)
REFUSE(nvSandboxUtilsGetDriverVersion)
REFUSE(nvSandboxUtilsGetGpuResource)
REFUSE(nvSandboxUtilsGetFileContent)
