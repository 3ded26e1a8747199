/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for nvidia-cuda-mps-control: with -d or -f the daemon, else a client that sends it the
 * commands of standard input and prints the answers. With --sim-client it stands for a CUDA program.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

static const char *variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int reach_daemon(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = CONTROL_SOCKET};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    puts("Cannot find MPS control daemon process");
    return -1;
}

static int send_commands(int fd)
{
    char text[COMMANDS_SIZE];
    ssize_t n;
    if (fd < 0)
        return 1;
    while ((n = read(STDIN_FILENO, text, sizeof(text))) > 0)
        if (write(fd, text, (size_t)n) != n)
            return 1;
    shutdown(fd, SHUT_WR);
    while ((n = read(fd, text, sizeof(text))) > 0)
        if (write(STDOUT_FILENO, text, (size_t)n) != n)
            return 1;
    return n < 0;
}

int main(int argc, char **argv)
{
    const char *folder = variable("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    const char *log = variable("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps");
    bool is_client = argc == 3 && strcmp(argv[1], "--sim-client") == 0;
    bool is_multi_user = argc == 3 && strcmp(argv[2], "-M") == 0 && !getenv("NVCT_SIM_MPS_OLD");
    bool has_mode = argc == 2 || is_multi_user;
    bool in_background = has_mode && strcmp(argv[1], "-d") == 0;
    bool is_daemon = in_background || (has_mode && strcmp(argv[1], "-f") == 0);
    if (argc > 1 && !is_daemon && !is_client) {
        printf("usage: nvidia-cuda-mps-control [-d | -f] [-M]\n");
        return 1;
    }
    if (chdir(folder) != 0) { /* a socket's path has at most 107 bytes */
        printf(is_daemon ? "Failed to open the pipe directory %s: %s\n"
                         : "Cannot find MPS control daemon process\n",
               folder, strerror(errno));
        return 1;
    }
    if (is_client)
        return run_client(reach_daemon(), argv[2]);
    return is_daemon ? serve(in_background, is_multi_user, log) : send_commands(reach_daemon());
}
