/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients. Each may allocate as much as the smaller of its server's limit and its own variable
 * allows. The daemon's default applies to servers that start later. Without -M, clients of another
 * user wait until there are no others.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mps.h"

#define LIMIT_VARIABLE "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#define CLIENT "client "

static struct {
    int fd; /* 0: free */
    uid_t uid;
    bool waits;
    unsigned long long wanted_mib, own_mib;
} clients[MAX_CLIENTS];

int run_client(int daemon, const char *amount)
{
    const char *variable = getenv(LIMIT_VARIABLE), *end;
    const char *own = variable && strncmp(variable, "0=", 2) == 0 ? variable + 2 : "";
    char text[COMMANDS_SIZE];
    ssize_t n;
    if (daemon < 0)
        return 1;
    dprintf(daemon, CLIENT "%llu %llu\n", parse_amount(amount, &end), parse_amount(own, &end));
    shutdown(daemon, SHUT_WR);
    if ((n = read(daemon, text, sizeof(text))) <= 0 || write(STDOUT_FILENO, text, (size_t)n) != n)
        return 1;
    if (strncmp(text, "out", 3) == 0)
        return 2;
    while (read(STDIN_FILENO, text, sizeof(text)) > 0)
        ;
    return 0;
}

/* Answer a client with the memory that it has got. */
static void answer(int i, bool is_multi_user)
{
    char limit[64] = "no limit";
    unsigned long long own = clients[i].own_mib;
    unsigned long long mib = server_limit_mib(clients[i].uid, is_multi_user);
    if (own && (!mib || own < mib))
        mib = own;
    if (mib)
        snprintf(limit, sizeof(limit), "limit %lluM", mib);
    bool fits = !mib || clients[i].wanted_mib <= mib;
    dprintf(clients[i].fd, "%s: %s\n", fits ? "allocated" : "out of memory", limit);
    clients[i].waits = false;
    if (!fits) {
        close(clients[i].fd);
        clients[i].fd = 0;
    }
}

static bool is_turn(int i, bool is_multi_user)
{
    for (int j = 0; j < MAX_CLIENTS && !is_multi_user; j++)
        if (clients[j].fd && !clients[j].waits && clients[j].uid != clients[i].uid)
            return false;
    return true;
}

bool take_client(int connection, const char *text, bool is_multi_user)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    char *rest;
    int i = 0;
    if (strncmp(text, CLIENT, strlen(CLIENT)) != 0)
        return false;
    while (i < MAX_CLIENTS && clients[i].fd)
        i++;
    if (i == MAX_CLIENTS || getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        close(connection);
        return true;
    }
    clients[i].fd = connection;
    clients[i].uid = peer.uid;
    clients[i].waits = true;
    clients[i].wanted_mib = (unsigned long long)strtod(text + strlen(CLIENT), &rest);
    clients[i].own_mib = (unsigned long long)strtod(rest, NULL);
    if (is_turn(i, is_multi_user))
        answer(i, is_multi_user);
    return true;
}

void wait_for_connection(int listener, bool is_multi_user)
{
    struct pollfd polled[MAX_CLIENTS + 1];
    do {
        polled[MAX_CLIENTS] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < MAX_CLIENTS; i++) /* a client has closed its half already */
            polled[i] = (struct pollfd){.fd = clients[i].fd ? clients[i].fd : -1};
        if (poll(polled, MAX_CLIENTS + 1, -1) < 0)
            return;
        for (int i = 0; i < MAX_CLIENTS; i++) {
            if (polled[i].revents) {
                close(clients[i].fd);
                clients[i].fd = 0;
            }
        }
        for (int i = 0; i < MAX_CLIENTS; i++)
            if (clients[i].fd && clients[i].waits && is_turn(i, is_multi_user))
                answer(i, is_multi_user);
    } while (!polled[MAX_CLIENTS].revents);
}
