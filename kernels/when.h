/* when.h - times for people. */
#pragma once

#include <stdint.h>
#include <string.h>
#include <time.h>

/* Milliseconds since 1970 as local time, "2026-01-31 14:05"; "?": there is no such time. */
static inline void when_text(int64_t ms, char out[20])
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    if (!localtime_r(&t, &tm) || !strftime(out, 20, "%Y-%m-%d %H:%M", &tm))
        memcpy(out, "?", 2);
}
