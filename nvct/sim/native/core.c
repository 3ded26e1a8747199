/* SPDX-License-Identifier: Apache-2.0
 *
 * Initialisation, the lock around every call, and handles.
 *
 * A handle is a place in a table and never goes away; what it stands for is looked up in the
 * present state on every call, so handles of destroyed instances fail instead of crashing.
 */
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simulation.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users; /* nvmlInit less nvmlShutdown */
static struct snapshot current;
static char own_version[80];

enum { MAX_HANDLES = 8192 };
static struct handle handles[MAX_HANDLES];
static unsigned n_handles;

void wait_ms(unsigned ms)
{
    struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

unsigned long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000;
}

bool is_initialized(void)
{
    pthread_mutex_lock(&lock);
    bool yes = users > 0;
    pthread_mutex_unlock(&lock);
    return yes;
}

/* --- where the library is ----------------------------------------------------------------- */

struct own_file {
    ElfW(Addr) address;
    const char *name;
};

static int find_own_file(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct own_file *own = arg;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        ElfW(Addr) start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && own->address >= start &&
            own->address < start + segment->p_memsz) {
            own->name = info->dlpi_name;
            return 1;
        }
    }
    return 0;
}

/* Fill in own_version and the path of the state file, which lies beside the library.
 * Not dladdr: before glibc 2.34 it needs libdl, which a small container may lack. */
static nvmlReturn_t locate(char *state, size_t size)
{
    static const char stem[] = "libnvidia-ml.so.";
    char real[PATH_MAX];
    struct own_file own = {(ElfW(Addr))&users, NULL};
    dl_iterate_phdr(find_own_file, &own);
    if (!own.name || !realpath(own.name, real))
        return NVML_ERROR_UNKNOWN;
    char *base = strrchr(real, '/') + 1;
    if (strncmp(base, stem, sizeof(stem) - 1) != 0)
        return NVML_ERROR_UNKNOWN;
    snprintf(own_version, sizeof(own_version), "%s", base + sizeof(stem) - 1);
    *base = '\0';
    int n = snprintf(state, size, "%slibnvidia-simstate.so.%s", real, own_version);
    return n < 0 || (size_t)n >= size ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static nvmlReturn_t attach(void)
{
    char path[PATH_MAX + 128];
    const char *directory = getenv("NVCT_SIM_DEV");
    device_directory = directory && *directory ? directory : "/dev";
    nvmlReturn_t result = probe_control_node();
    if (result != NVML_SUCCESS)
        return result;
    result = locate(path, sizeof(path));
    if (result != NVML_SUCCESS)
        return result;
    result = state_open(path);
    if (result != NVML_SUCCESS)
        return result;
    memset(&current, 0, sizeof(current));
    result = state_refresh(&current);
    if (result == NVML_SUCCESS)
        suffer(&current);
    if (result == NVML_SUCCESS && strcmp(current.driver, own_version) != 0)
        result = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (result != NVML_SUCCESS)
        state_close();
    return result;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : attach();
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users && --users == 0)
        state_close();
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- calls and handles -------------------------------------------------------------------- */

nvmlReturn_t begin(struct snapshot **state)
{
    pthread_mutex_lock(&lock);
    if (!users)
        return finish(NVML_ERROR_UNINITIALIZED);
    nvmlReturn_t result = state_refresh(&current);
    if (result != NVML_SUCCESS)
        return finish(result);
    suffer(&current);
    *state = &current;
    return NVML_SUCCESS;
}

nvmlReturn_t finish(nvmlReturn_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

struct handle *intern(enum kind kind, unsigned gpu, unsigned gi, unsigned ci)
{
    for (unsigned i = 0; i < n_handles; i++) {
        struct handle *h = &handles[i];
        if (h->kind == kind && h->gpu == gpu && h->gi == gi && h->ci == ci)
            return h;
    }
    if (n_handles == MAX_HANDLES)
        return NULL;
    handles[n_handles] = (struct handle){kind, gpu, gi, ci};
    return &handles[n_handles++];
}

nvmlReturn_t give_handle(struct handle **out, struct handle *handle)
{
    if (!handle)
        return NVML_ERROR_MEMORY;
    *out = handle;
    return NVML_SUCCESS;
}

/* Callers pass any pointer: look only at those that we gave out. */
static bool is_ours(const struct handle *handle)
{
    return handle >= handles && handle < handles + n_handles &&
           ((size_t)((const char *)handle - (const char *)handles)) % sizeof(*handle) == 0;
}

nvmlReturn_t resolve(struct snapshot *state, nvmlDevice_t device, enum accept accept,
                     struct target *target)
{
    *target = (struct target){state, NULL, NULL, NULL};
    if (!is_ours(device) || (device->kind != GPU_HANDLE && device->kind != MIG_HANDLE))
        return NVML_ERROR_INVALID_ARGUMENT;
    target->gpu = find_gpu(state, device->gpu);
    if (!target->gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (target->gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    if (device->kind == GPU_HANDLE)
        return accept == MIG_DEVICE ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
    target->gi = find_gpu_instance(state, device->gpu, device->gi);
    target->ci = find_compute_instance(state, device->gpu, device->gi, device->ci);
    if (!target->gi || !target->ci)
        return NVML_ERROR_INVALID_ARGUMENT;
    return accept == WHOLE_GPU ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t begin_device(nvmlDevice_t device, enum accept accept, struct target *target)
{
    struct snapshot *state;
    nvmlReturn_t result = begin(&state);
    if (result != NVML_SUCCESS)
        return result;
    result = resolve(state, device, accept, target);
    return result == NVML_SUCCESS ? result : finish(result);
}

nvmlReturn_t begin_instance(struct handle *instance, enum kind kind, struct target *target)
{
    struct snapshot *state;
    nvmlReturn_t result = begin(&state);
    if (result != NVML_SUCCESS)
        return result;
    if (!is_ours(instance) || instance->kind != kind)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *target = (struct target){state, find_gpu(state, instance->gpu), NULL, NULL};
    target->gi = find_gpu_instance(state, instance->gpu, instance->gi);
    if (kind == COMPUTE_INSTANCE_HANDLE)
        target->ci = find_compute_instance(state, instance->gpu, instance->gi, instance->ci);
    if (!target->gpu || !target->gi || (kind == COMPUTE_INSTANCE_HANDLE && !target->ci))
        return finish(NVML_ERROR_NOT_FOUND);
    return target->gpu->lost ? finish(NVML_ERROR_GPU_IS_LOST) : NVML_SUCCESS;
}

nvmlReturn_t copy_text(const char *from, char *to, unsigned length)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, strlen(from) + 1);
    return NVML_SUCCESS;
}

/* --- the system --------------------------------------------------------------------------- */

API const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const text[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "GPU access blocked by the operating system",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory",
        "No data", "The requested vgpu operation is not available on target device, because ECC is "
        "enabled", "Insufficient Resources", "Frequency Not Supported",
        "Argument Version Mismatch", "Deprecated", "Not Ready", "GPU Not Found", "Invalid State",
        "Reset Type Not Supported",
    };
    return result < sizeof(text) / sizeof(text[0]) ? text[result] : "Unknown Error";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    return result ? result : finish(copy_text(s->driver, version, length));
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char text[128];
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    snprintf(text, sizeof(text), "%u.%s", s->cuda / 1000, own_version);
    return finish(copy_text(text, version, length));
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!version)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *version = (int)s->cuda;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], line[1024] = "";
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!name || !length)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(line, 1, sizeof(line) - 1, file) : 0;
    if (file)
        fclose(file);
    if (!n)
        return finish(NVML_ERROR_NOT_FOUND);
    snprintf(name, length, "%s", line); /* the first word; the real library cuts it off, too */
    return finish(NVML_SUCCESS);
}
