/* late.h - a library that is loaded when it is first used, and not at every start of the program.
 *
 * libcurl and libmicrohttpd need thirty more libraries. Loading them takes two thirds of the time
 * of a short command, and few commands speak with a server or are one.
 */
#pragma once

#include "kernels/base.h"

/* Loads a library, for good, and finds n functions in it: call is an array of n pointers to
 * functions, or a struct of nothing else, in the order of the names. False and *e (ERR_USAGE): the
 * library is missing, or lacks one of the functions. */
bool late_load(const char *file, const char *const *name, void *call, int n, struct err *e);
