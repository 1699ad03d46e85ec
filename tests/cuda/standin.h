/* standin.h - what a test sees of the stand-in of the CUDA runtime (standin.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the program has machine code for compute capability 9.0, on which all else depends. */
bool standin_has_code(void);
/* The calls that broke a rule since the last call of this function, a line each; "": none. The text
 * is valid until the next call. */
const char *standin_wrong(void);
/* What is allocated and not freed: bytes of device memory, and how many allocations, pinned
 * allocations, streams, events and graphs; "": nothing. Valid as above. */
const char *standin_left(void);

/* What was checked since the process began. */
struct standin_counts {
    unsigned long launches, replayed, copies, maps, pointers; /* replayed: launches of graphs */
    int kernels;                                              /* different ones */
};
struct standin_counts standin_counts(void);

/* Lets the n-th of the following calls that can fail do so, as if memory or the device had failed;
 * 0: none. standin_failed(): whether that call came. */
void standin_fail(int n);
bool standin_failed(void);

/* How the host names a kernel whose mangled name contains `part`; NULL: there is none. */
const void *standin_kernel(const char *part);
/* Gives the kernel n registers a thread; returns how many it had, those of its machine code. */
int standin_registers(const void *kernel, int n);
/* Kernels compute nothing. Where the host waits for what a kernel writes, a test says what that is:
 * run(args) is called at every launch, in graphs too, of the kernels whose mangled name contains
 * `part`. args: as of cudaLaunchKernel(). At most eight. */
void standin_effect(const char *part, void (*run)(void *const *args));
/* The n bytes at p, an address of the device or of the host, as the host can read and write them.
 * An address of the device outside all allocations is a broken rule. */
void *standin_memory(const void *p, size_t n);
