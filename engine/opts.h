/* opts.h - the options with which a backend is opened: plain data that the command line fills
 * in, and the rows (settings.h) by which they are read, printed, logged and compared. */
#pragma once

#include "engine/bugs.h"
#include "engine/settings.h"
#include "models/models.h"

struct evq;
struct kernels;

/* A server that takes the place of the local engine (engine/remote/). */
struct server_opts {
    const char *url;      /* NULL: the engine of this process */
    const char *key_file; /* the file with the server's API key; or NULL */
    const char *const *header; /* (n_header) "Name: value" */
    int n_header;
    const char *kv_events; /* "tcp://HOST:PORT[,replay=tcp://HOST:PORT]": where the server publishes
                              its KV events; NULL: they are not read */
};

/* The pools of an earlier run, in pages of its size; page_size 0: not known. */
struct pools_before {
    int page_size, full_pages, swa_pages;
};

struct engine_opts {
    struct server_opts server;
    const char *model, *draft; /* folders; draft: or a drafter's name (drafter.h); NULL: none */
    const char *draft_from;    /* where a draft that nobody named was found, for people; or NULL */
    const char *device;        /* "cpu", "cuda", "auto" */
    const char *capture;       /* --eagle-capture, or NULL */
    bool require_draft;        /* a draft that does not fit is an error, not a notice */
    bool raw;                  /* no chat format */
    const char *date;          /* "YYYY-MM-DD" for formats whose prompt names it; NULL: as
                                  chat_date() has it */
    const struct kernels *backend; /* a kernel table to use whatever `device` says; NULL: none */
    int threads;               /* CPU threads, 0: all cores */
    const char *precision;     /* as of device_open() */
    const char *kv;            /* as of struct device_opts */
    struct quant_opts quant;       /* weights in FP8 */
    bool headers;              /* weights are not read, only the headers of their files: to ask what
                                  would fit */
    const char *load;          /* "auto", "map", "copy": whether the CPU uses weights in the mapped
                                  files (READ_AUTO, READ_MAP, READ_COPY of models.h); NULL: auto */
    int page_size;             /* 1..64, power of two; 0: 16 */
    int context;               /* longest context in tokens, 0: the model's, within reason and
                                  what the device's memory holds */
    int full_pages, swa_pages; /* pool sizes, 0: what the context needs */
    struct pools_before was;   /* a pool that was given another size there than the context needs
                                  holds as many tokens here, unless it has a size above */
    int rows;                  /* most prompt tokens of one pass; 0: what settings.chunk asks for */
    int lanes;                 /* replies of RQ_BATCH, or jobs, at the same time, at most 32: pools
                                  and buffers are sized for this many further conversations; 0: 1,
                                  without additional pages */
    struct settings settings;  /* to start with */
    struct bugs bugs;          /* historical faults that are on at the start */
    bool attended;             /* a person is at the terminal: `forget` defaults to ask */
    struct evq *log;           /* the log's queue, or NULL; the caller owns it */
    void (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
    void *progress_arg; /* called on the thread that called engine_open() */
    bool (*stop)(void *progress_arg); /* the same: whether reading the models shall end */
    void (*notice)(void *arg, const char *line); /* engine_load(): a line for people; or NULL. An
                                  engine posts such lines as EV_NOTICE instead */
    void *notice_arg;
    /* Generates target and draft instead of reading folders (benchmarks); or NULL */
    bool (*make)(void *arg, struct model *m, struct draft *d, struct err *e);
    void *make_arg;
};

/* The rows of the options that have a name outside the program; `at` is in struct engine_opts. */
int opts_count(void);
const struct option *opts_at(int i);
/* The row of a name, in which - stands for _, too; NULL: there is none. */
const struct option *opts_find(const char *name);
/* The row whose value the log has under this name; NULL: there is none. */
const struct option *opts_logged_as(const char *name);
/* Whether every text that is one of several words is one of them; else false and *e (ERR_USAGE). */
bool opts_check(const struct engine_opts *o, struct err *e);
/* Appends all that needs another engine if it changes: every row, not settings and faults. Equal
 * texts: one engine serves both. */
void opts_key(const struct engine_opts *o, struct buf *out);
/* Appends the options as the log has them, as "name=value" lines. */
void opts_print(const struct engine_opts *o, struct buf *out);
/* Every row of *o is that of `asked` if it was given there, else as the log has it. lines: what
 * opts_print() appended, cut into texts here: texts of *o point into it. */
void opts_read(struct engine_opts *o, const struct engine_opts *asked, char *lines);
