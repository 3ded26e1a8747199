/* SPDX-License-Identifier: Apache-2.0
 *
 * Initialisation, the lock around every call, and handles.
 *
 * A handle is an entry of a table and is never freed. Every call looks up in the current state
 * what the handle refers to, so that a handle of a destroyed instance is an error and not a crash.
 */
#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "simulation.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned init_count; /* calls of nvmlInit minus calls of nvmlShutdown */
static struct snapshot current;
static char library_version[80];

enum { MAX_HANDLES = 8192 };
static struct handle handles[MAX_HANDLES];
static unsigned n_handles;

bool is_initialized(void)
{
    pthread_mutex_lock(&lock);
    bool initialized = init_count > 0;
    pthread_mutex_unlock(&lock);
    return initialized;
}

/* --- where the library is ----------------------------------------------------------------- */

struct library_file {
    ElfW(Addr) address;
    const char *name;
};

static int find_library_file(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct library_file *file = arg;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        ElfW(Addr) start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && file->address >= start &&
            file->address < start + segment->p_memsz) {
            file->name = info->dlpi_name;
            return 1;
        }
    }
    return 0;
}

/* Set library_version from the file's name at path, or, because a mount's name may have no version,
 * from another name of the same file in its folder. */
static nvmlReturn_t find_version(const char *path)
{
    static const char stem[] = "libnvidia-ml.so.";
    const char *base = strrchr(path, '/') + 1;
    char beside[PATH_MAX + NAME_MAX + 2];
    struct statx own, other; /* stat is a symbol of glibc 2.33 */
    if (strncmp(base, stem, sizeof(stem) - 1) != 0 || statx(AT_FDCWD, path, 0, STATX_INO, &own) != 0)
        return NVML_ERROR_UNKNOWN;
    snprintf(library_version, sizeof(library_version), "%s", base + sizeof(stem) - 1);
    snprintf(beside, sizeof(beside), "%.*s", (int)(base - path), path);
    DIR *folder = strchr(library_version, '.') ? NULL : opendir(beside);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        snprintf(beside, sizeof(beside), "%.*s%s", (int)(base - path), path, entry->d_name);
        if (strncmp(entry->d_name, stem, sizeof(stem) - 1) == 0 &&
            strchr(entry->d_name + sizeof(stem) - 1, '.') &&
            statx(AT_FDCWD, beside, 0, STATX_INO, &other) == 0 && other.stx_ino == own.stx_ino &&
            other.stx_dev_major == own.stx_dev_major && other.stx_dev_minor == own.stx_dev_minor)
            snprintf(library_version, sizeof(library_version), "%s",
                     entry->d_name + sizeof(stem) - 1);
    }
    if (folder)
        closedir(folder);
    return NVML_SUCCESS;
}

/* Set library_version and the path of the state file, which is in the library's folder. dladdr is
 * not used: before glibc 2.34 it needs libdl, which a small container may lack. */
static nvmlReturn_t find_state_file(char *state, size_t size)
{
    char path[PATH_MAX];
    struct library_file file = {(ElfW(Addr))&init_count, NULL};
    dl_iterate_phdr(find_library_file, &file);
    if (!file.name || !realpath(file.name, path))
        return NVML_ERROR_UNKNOWN;
    if (find_version(path) != NVML_SUCCESS)
        return NVML_ERROR_UNKNOWN;
    strrchr(path, '/')[1] = '\0';
    int n = snprintf(state, size, "%slibnvidia-simstate.so.%s", path, library_version);
    return n < 0 || (size_t)n >= size ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static nvmlReturn_t open_driver(void)
{
    char path[PATH_MAX + 128];
    const char *directory = getenv("NVCT_SIM_DEV");
    device_directory = directory && *directory ? directory : "/dev";
    nvmlReturn_t result = probe_control_node();
    if (result != NVML_SUCCESS)
        return result;
    result = find_state_file(path, sizeof(path));
    if (result != NVML_SUCCESS)
        return result;
    result = state_open(path);
    if (result != NVML_SUCCESS)
        return result;
    memset(&current, 0, sizeof(current));
    result = state_refresh(&current);
    if (result == NVML_SUCCESS)
        apply_fault(&current);
    if (result == NVML_SUCCESS && strcmp(current.driver, "none") == 0)
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS && strcmp(current.driver, library_version) != 0)
        result = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (result != NVML_SUCCESS)
        state_close();
    return result;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = init_count ? NVML_SUCCESS : open_driver();
    if (result == NVML_SUCCESS)
        init_count++;
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
    nvmlReturn_t result = init_count ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (init_count && --init_count == 0)
        state_close();
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- calls and handles -------------------------------------------------------------------- */

nvmlReturn_t begin(struct snapshot **state)
{
    pthread_mutex_lock(&lock);
    if (!init_count)
        return finish(NVML_ERROR_UNINITIALIZED);
    nvmlReturn_t result = state_refresh(&current);
    if (result != NVML_SUCCESS)
        return finish(result);
    apply_fault(&current);
    *state = &current;
    return NVML_SUCCESS;
}

nvmlReturn_t finish(nvmlReturn_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t set_handle(struct handle **out, enum kind kind, unsigned gpu, unsigned gi, unsigned ci)
{
    unsigned i = 0;
    while (i < n_handles && !(handles[i].kind == kind && handles[i].gpu == gpu &&
                              handles[i].gi == gi && handles[i].ci == ci))
        i++;
    if (i == MAX_HANDLES)
        return NVML_ERROR_MEMORY;
    if (i == n_handles)
        handles[n_handles++] = (struct handle){kind, gpu, gi, ci};
    *out = &handles[i];
    return NVML_SUCCESS;
}

/* A caller can pass any pointer; only a pointer to a used entry of the table is read. */
static bool is_handle(const struct handle *handle)
{
    return handle >= handles && handle < handles + n_handles &&
           ((size_t)((const char *)handle - (const char *)handles)) % sizeof(*handle) == 0;
}

nvmlReturn_t resolve(struct snapshot *state, nvmlDevice_t device, enum accept accept,
                     struct target *target)
{
    *target = (struct target){state, NULL, NULL, NULL};
    if (!is_handle(device) || (device->kind != GPU_HANDLE && device->kind != MIG_HANDLE))
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
    enum { POLL_MS = 20 };
    struct snapshot *state;
    for (;;) {
        nvmlReturn_t result = begin(&state);
        if (result != NVML_SUCCESS)
            return result;
        result = resolve(state, device, accept, target);
        if (result != NVML_SUCCESS)
            return finish(result);
        if (now_us() / 1000 >= metric_or(target->gpu, HANG_UNTIL, 0))
            return NVML_SUCCESS;
        finish(NVML_SUCCESS); /* only this GPU hangs: calls on others go on */
        wait_ms(POLL_MS);
    }
}

nvmlReturn_t begin_instance(struct handle *instance, enum kind kind, struct target *target)
{
    struct snapshot *state;
    nvmlReturn_t result = begin(&state);
    if (result != NVML_SUCCESS)
        return result;
    if (!is_handle(instance) || instance->kind != kind)
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
    snprintf(text, sizeof(text), "%u.%s", s->cuda / 1000, library_version);
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
    snprintf(name, length, "%s", line); /* the first argument; the real library truncates it, too */
    return finish(NVML_SUCCESS);
}
