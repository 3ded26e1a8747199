/* SPDX-License-Identifier: Apache-2.0
 *
 * Name-based UUIDs (RFC 9562, version 5; SHA-1 by RFC 3174). The UUID of a MIG device follows from
 * its GPU and its ids: a device that is destroyed and created again keeps it, as since driver 470.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "simulation.h"

static uint32_t rotate(uint32_t value, unsigned bits)
{
    return value << bits | value >> (32 - bits);
}

static void sha1_block(uint32_t state[5], const unsigned char block[64])
{
    uint32_t w[80];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (unsigned i = 0; i < 80; i++) {
        uint32_t f, k;
        if (i < 20)
            f = (b & c) | (~b & d), k = 0x5A827999;
        else if (i < 40)
            f = b ^ c ^ d, k = 0x6ED9EBA1;
        else if (i < 60)
            f = (b & c) | (b & d) | (c & d), k = 0x8F1BBCDC;
        else
            f = b ^ c ^ d, k = 0xCA62C1D6;
        uint32_t next = rotate(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotate(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

/* The hash of data that fits in 3 blocks with 9 bytes of padding. */
static void sha1(const unsigned char *data, size_t size, unsigned char out[20])
{
    uint32_t state[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    unsigned char padded[3 * 64] = {0};
    size_t blocks = (size + 9 + 63) / 64;
    memcpy(padded, data, size);
    padded[size] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        padded[blocks * 64 - 1 - i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
    for (size_t i = 0; i < blocks; i++)
        sha1_block(state, padded + 64 * i);
    for (unsigned i = 0; i < 20; i++)
        out[i] = (unsigned char)(state[i / 4] >> 8 * (3 - i % 4));
}

void make_mig_uuid(const char *gpu_uuid, unsigned gi, unsigned ci, char *out, size_t size)
{
    /* The namespace of nvct_sim/mig.py: 6f0d4a9e-52a5-5a3c-9d5e-2d0f6a1c7b11. */
    static const unsigned char space[16] = {0x6f, 0x0d, 0x4a, 0x9e, 0x52, 0xa5, 0x5a, 0x3c,
                                            0x9d, 0x5e, 0x2d, 0x0f, 0x6a, 0x1c, 0x7b, 0x11};
    unsigned char seed[16 + UUID_LENGTH + 24], h[20];
    memcpy(seed, space, sizeof(space));
    int n = snprintf((char *)seed + 16, sizeof(seed) - 16, "%s/%u/%u", gpu_uuid, gi, ci);
    sha1(seed, 16 + (size_t)n, h);
    h[6] = (unsigned char)((h[6] & 0x0f) | 0x50); /* version 5, */
    h[8] = (unsigned char)((h[8] & 0x3f) | 0x80); /* variant of the RFC */
    snprintf(out, size, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11], h[12],
             h[13], h[14], h[15]);
}
