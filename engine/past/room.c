/* room.c - see room.h. */
#include "engine/past/room.h"

#include <limits.h>

enum { SHARE = 4 }; /* a full context frees one part of so many of its room */

int room_reserve(int context)
{
    return min_int(512, context / 8);
}

int room_least(int context)
{
    return min_int(64, context / 16);
}

static int long_text(const struct room_turns *t)
{
    return t->context / 4;
}

/* Marks the oldest of the first n turns of at most `most` tokens until removing them frees `need`
 * tokens. Returns the number of tokens still missing. */
static int leave_oldest(const struct room_turns *t, int n, int most, int need)
{
    for (int i = 0; i < n && need > 0; i++)
        if (!t->gone[i] && t->tokens[i] <= most) {
            t->gone[i] = true;
            need -= t->tokens[i];
        }
    return need;
}

static int short_tokens(const struct room_turns *t)
{
    int sum = 0;
    for (int i = 0; i < t->n; i++)
        if (!t->gone[i] && t->tokens[i] <= long_text(t))
            sum += t->tokens[i];
    return sum;
}

void room_choose(const struct room_turns *t, int all)
{
    int reserve = room_reserve(t->context), room = t->context - (all - short_tokens(t));
    int need = leave_oldest(t, t->n, long_text(t), all + reserve - t->context);
    leave_oldest(t, t->n, INT_MAX, need - reserve + room_least(t->context));
    leave_oldest(t, t->n - 1, long_text(t), need + max_int(0, room) / SHARE);
}

bool room_has_short(const struct room_turns *t)
{
    return short_tokens(t) > 0;
}

bool room_leave_one(const struct room_turns *t)
{
    return leave_oldest(t, t->n, long_text(t), 1) <= 0 || leave_oldest(t, t->n, INT_MAX, 1) <= 0;
}

void room_print_turns(const struct ids *turns, struct buf *out)
{
    buf_printf(out, "turn%s", plural(turns->n));
    for (int i = 0, last; i < turns->n; i = last + 1) {
        for (last = i; last + 1 < turns->n && turns->v[last + 1] == turns->v[last] + 1; last++)
            ;
        buf_printf(out, "%s %d", i ? "," : "", turns->v[i]);
        if (last > i)
            buf_printf(out, "-%d", turns->v[last]);
    }
}
