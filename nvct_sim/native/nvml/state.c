/* SPDX-License-Identifier: Apache-2.0
 *
 * The state file. It is read when its generation changes, and changed in place: containers hold
 * bind mounts of it, which a rename would cut off. Writers exclude each other by flock(2). Readers
 * take no lock, because a container must not be able to block the node; they read again while the
 * generations in the first and the last line differ.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "simulation.h"

static int state_fd = -1;
static char state_path[PATH_MAX];
static struct text scratch;

static ssize_t read_at(int fd, char *data, size_t size)
{
    size_t n = 0;
    while (n < size) {
        ssize_t chunk = pread(fd, data + n, size - n, (off_t)(STATE_OFFSET + n));
        if (chunk < 0 && errno == EINTR)
            continue;
        if (chunk < 0)
            return -1;
        if (chunk == 0)
            break;
        n += (size_t)chunk;
    }
    return (ssize_t)n;
}

static nvmlReturn_t read_state(int fd, struct text *text, struct snapshot *out)
{
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    for (int attempt = 0; attempt < 100; attempt++) {
        ssize_t n = read_at(fd, text->data, TEXT_SIZE);
        if (n < 0)
            return NVML_ERROR_UNKNOWN;
        text->data[n] = '\0';
        text->length = strlen(text->data);
        result = parse_snapshot(text, out);
        if (result == NVML_SUCCESS)
            break;
        wait_ms(1); /* a write is in progress, or the file is damaged */
    }
    return result;
}

nvmlReturn_t state_open(const char *path)
{
    int n = snprintf(state_path, sizeof(state_path), "%s", path);
    if (n < 0 || (size_t)n >= sizeof(state_path))
        return NVML_ERROR_UNKNOWN;
    state_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (state_fd >= 0)
        return NVML_SUCCESS;
    return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION
                                             : NVML_ERROR_DRIVER_NOT_LOADED;
}

void state_close(void)
{
    if (state_fd >= 0)
        close(state_fd);
    state_fd = -1;
}

int state_descriptor(void)
{
    return state_fd;
}

/* Watch the file in the node's tree, because inotify sees no change in an overlay or a container. */
int state_watch(const char *tree)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/state", tree);
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd >= 0 && inotify_add_watch(fd, path, IN_MODIFY) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Read the generation in the first line; false if that fails. */
static bool peek_generation(unsigned long *generation)
{
    char head[64];
    unsigned long long value;
    ssize_t n = read_at(state_fd, head, sizeof(head) - 1);
    if (n <= 0)
        return false;
    head[n] = '\0';
    const char *at = strchr(head, '\t');
    at = at ? strchr(at + 1, '\t') : NULL;
    if (!at || (at++, !parse_number(&at, &value)))
        return false;
    *generation = (unsigned long)value;
    return true;
}

nvmlReturn_t state_refresh(struct snapshot *snapshot)
{
    unsigned long generation;
    if (snapshot->generation && peek_generation(&generation) &&
        generation == snapshot->generation)
        return NVML_SUCCESS;
    return read_state(state_fd, &scratch, snapshot);
}

static nvmlReturn_t write_state(int fd, const struct text *text, size_t old_length)
{
    static char block[TEXT_SIZE];
    size_t size = text->length > old_length ? text->length : old_length;
    memset(block, 0, size);
    memcpy(block, text->data, text->length);
    for (size_t written = 0; written < size;) {
        ssize_t n = pwrite(fd, block + written, size - written, (off_t)(STATE_OFFSET + written));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return NVML_ERROR_UNKNOWN;
        written += (size_t)n;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t bump_generation(struct text *text, unsigned long generation)
{
    char head[64];
    char *first_end = strchr(text->data, '\n');
    snprintf(head, sizeof(head), "nvct-sim\t1\t%lu", generation);
    size_t old = (size_t)(first_end - text->data), new = strlen(head);
    if (text->length - old + new >= TEXT_SIZE)
        return NVML_ERROR_MEMORY;
    memmove(text->data + new, first_end, text->length - old + 1);
    memcpy(text->data, head, new);
    text->length = text->length - old + new;
    char *end = text->data + text->length;
    while (end > text->data && strncmp(end, "\nend\t", 5) != 0)
        end--;
    *++end = '\0';
    text->length = (size_t)(end - text->data);
    return text_append(text, "end\t%lu\n", generation);
}

/* If the driver is at /, the file is in a read-only overlay, so the file in the node's tree is opened.
 * A container does not see the tree. */
static int open_to_write(struct snapshot *now)
{
    char path[PATH_MAX + 16];
    int fd = open(state_path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 || errno != EROFS || read_state(state_fd, &scratch, now) != NVML_SUCCESS)
        return fd;
    snprintf(path, sizeof(path), "%s/state", now->tree);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Read, edit and write under one lock, so that no other change is lost. */
nvmlReturn_t state_edit(nvmlReturn_t (*edit)(struct snapshot *, struct text *, void *), void *arg)
{
    static struct snapshot now;
    int fd = open_to_write(&now);
    if (fd < 0)
        return NVML_ERROR_NO_PERMISSION; /* a container's view of the state is read-only */
    while (flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(fd);
            return NVML_ERROR_UNKNOWN;
        }
    nvmlReturn_t result = read_state(fd, &scratch, &now);
    size_t old_length = scratch.length;
    if (result == NVML_SUCCESS)
        result = edit(&now, &scratch, arg);
    if (result == NVML_SUCCESS)
        result = bump_generation(&scratch, now.generation + 1);
    if (result == NVML_SUCCESS)
        result = write_state(fd, &scratch, old_length);
    close(fd); /* releases the lock */
    return result;
}
