/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon: one per pipe directory. It serves one connection at a time; those of clients stay open.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

enum { BACKLOG = 16 };

static void log_line(const char *folder, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/control.log", folder);
    FILE *log = fopen(path, "ae");
    if (!log)
        return;
    fprintf(log, "[Control %d] %s\n", (int)getpid(), text);
    fclose(log);
}

/* Answer one connection; return whether the daemon is to end. */
static bool answer(int client, bool is_multi_user)
{
    char text[COMMANDS_SIZE];
    size_t n = 0;
    ssize_t chunk;
    while (n < sizeof(text) - 1 && (chunk = read(client, text + n, sizeof(text) - 1 - n)) > 0)
        n += (size_t)chunk;
    text[n] = '\0';
    if (take_client(client, text, is_multi_user))
        return false;
    FILE *out = fdopen(client, "w");
    if (!out) {
        close(client);
        return false;
    }
    bool ends = run_commands(text, out);
    if (ends) { /* before the answer, so that no other client finds a daemon that ends */
        unlink(CONTROL_SOCKET);
        unlink(PID_FILE);
    }
    fclose(out);
    return ends;
}

/* Lock the pipe directory; the lock ends with the process, even after a kill. */
static int take(void)
{
    int lock = open(PID_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
        puts(lock < 0 ? strerror(errno) : "An instance of this daemon is already running");
        return -1;
    }
    return lock;
}

static int listen_here(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = CONTROL_SOCKET};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(CONTROL_SOCKET);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        chmod(CONTROL_SOCKET, 0666) != 0 || listen(fd, BACKLOG) != 0) { /* clients of any user */
        puts(strerror(errno));
        return -1;
    }
    return fd;
}

static void end_at_once(int number)
{
    _exit(128 + number);
}

int serve(bool in_background, bool is_multi_user, const char *log_directory)
{
    int lock = take(), listener = lock < 0 ? -1 : listen_here();
    if (listener < 0)
        return 1;
    if (in_background && fork() > 0)
        _exit(0);
    if (in_background)
        setsid();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, end_at_once); /* process 1 of a container has no default action */
    dprintf(lock, "%d\n", (int)getpid());
    log_line(log_directory, "Start");
    for (bool ends = false; !ends;) {
        wait_for_connection(listener, is_multi_user);
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0)
            ends = answer(client, is_multi_user);
        else if (errno != EINTR)
            return 1;
    }
    log_line(log_directory, "Quit");
    return 0;
}
