/* pack.c - `aerie pack ID`: a session as one file that others can open. */
#include "repl/cli/cli.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/json.h"
#include "repl/facts.h"

/* ---- "A..B" ---- */

/* Reads TURN.STEP at *p and moves *p behind it. */
static bool read_address(const char **p, int *turn, int *step)
{
    char *end;
    long t = **p >= '0' && **p <= '9' ? strtol(*p, &end, 10) : 0, s = 0;
    if (t > 0 && *end == '.' && end[1] >= '0' && end[1] <= '9')
        s = strtol(end + 1, &end, 10);
    if (t < 1 || s < 1 || t > 100000000 || s > 100000000)
        return false;
    *turn = (int)t;
    *step = (int)s;
    *p = end;
    return true;
}

static bool read_range(const char *text, struct pack_opts *o, struct err *e)
{
    const char *p = text;
    bool ok = read_address(&p, &o->from_turn, &o->from_step);
    if (ok && strncmp(p, "..", 2) == 0)
        p += 2, ok = read_address(&p, &o->to_turn, &o->to_step);
    else
        o->to_turn = o->from_turn, o->to_step = o->from_step;
    ok = ok && !*p && (o->to_turn > o->from_turn ||
                       (o->to_turn == o->from_turn && o->to_step >= o->from_step));
    return ok || err_set(e, ERR_USAGE, "--steps cannot be \"%.80s\"; expected A..B, two addresses "
                         "TURN.STEP in order, or one", text);
}

/* ---- the file's name ---- */

/* The title, or the id where there is none, without what file names or shells take amiss. A pack
 * without text is named by its id: a title is text. */
static char *default_name(const struct session_row *row, enum pack_level level)
{
    enum { MOST = 60 };
    const char *title = level == PACK_TEXT && row->title ? row->title : "";
    struct buf name = {0}, clean = {0};
    text_sanitise(&clean, title, strlen(title), false, NULL);
    for (const char *p = clean.p ? clean.p : ""; *p; p++) {
        bool bad = (unsigned char)*p <= ' ' || strchr("/\\:*?\"'<>|`$&;(){}[]!#~", *p);
        if (!bad)
            buf_char(&name, *p);
        else if (name.n && name.p[name.n - 1] != '-')
            buf_char(&name, '-');
    }
    if (name.n > MOST)
        for (name.n = MOST; name.n && ((unsigned char)name.p[name.n] & 0xC0) == 0x80;)
            name.n--;
    while (name.n && strchr("-.", name.p[name.n - 1]))
        name.n--;
    size_t skip = 0;
    while (skip < name.n && strchr("-.", name.p[skip]))
        skip++;
    char *path = name.n > skip ? xasprintf("%.*s.aerie", (int)(name.n - skip), name.p + skip)
                               : xasprintf("%s.aerie", row->id);
    buf_free(&name);
    buf_free(&clean);
    return path;
}

/* ---- the command ---- */

static void say_packed(const struct cli *c, const char *path, const struct pack_about *a)
{
    struct buf line = {0};
    if (c->opt.json) {
        jput_open(&line, '{');
        jput_kstr(&line, "file", path);
        jput_key(&line, "pack");
        facts_pack_json(a, &line);
        jput_close(&line, '}');
        cli_json(&line);
    } else {
        buf_printf(&line, "%s: session %s, ", path, a->session);
        facts_pack(a, &line);
        buf_printf(&line, ", %.1f kB\n", (double)a->bytes / 1000);
        cli_print_text(c, &line);
    }
    buf_free(&line);
}

int cli_pack(struct cli *c)
{
    struct err e = {0};
    struct session_row row = {0};
    struct pack_about about;
    char *made_by = xasprintf("aerie %s, %s", AERIE_VERSION, facts_build());
    struct pack_opts o = {.level = c->with_text ? PACK_TEXT : c->no_ids ? PACK_SHAPE : PACK_IDS,
                          .made_by = made_by};
    struct hdb *d = NULL;
    char *path = NULL;
    bool ok = !(c->with_text && c->no_ids) ||
              err_set(&e, ERR_USAGE, "--with-text keeps ids, too; expected it or --no-ids");
    ok = ok && (!c->steps || read_range(c->steps, &o, &e));
    ok = ok && (d = cli_open_session(c, c->word[0], &row, &e));
    if (ok)
        path = c->out ? xstrdup(c->out) : default_name(&row, o.level);
    ok = ok && hdb_pack(d, row.id, &o, path, &about, &e);
    if (ok)
        say_packed(c, path, &about);
    hdb_close(d);
    session_row_free(&row);
    free(path);
    free(made_by);
    return ok ? 0 : cli_fail(&e);
}
