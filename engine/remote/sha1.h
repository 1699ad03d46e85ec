/* sha1.h - SHA-1, by which git names files. (Not for security: sha256 of kernels/base.h is.) */
#pragma once

#include "kernels/base.h"

struct sha1 {
    uint32_t h[5];
    uint8_t block[64];
    size_t used;
    uint64_t n; /* bytes */
};
#define SHA1_START {.h = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0}}

void sha1_add(struct sha1 *s, const void *p, size_t n);
void sha1_end_hex(struct sha1 *s, char out[41]); /* 40 hexadecimal digits and a NUL */
