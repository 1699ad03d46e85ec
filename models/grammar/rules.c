/* rules.c - rules and their alternatives: see parts.h. */
#include "models/grammar/parts.h"

#include <stdarg.h>

/* ---- rules ----------------------------------------------------------------------------------- */

int grammar_rule(struct grammar *grammar)
{
    *APPEND(grammar->rule, grammar->n_rule) = (struct rule){0};
    return grammar->n_rule - 1;
}

static void put_element(struct sequence *seq, struct element e)
{
    *APPEND(seq->v, seq->n) = e;
}

void grammar_alt(struct grammar *grammar, int rule, struct sequence *seq)
{
    struct rule *r = &grammar->rule[rule];
    put_element(seq, (struct element){.kind = ELEMENT_END});
    grammar->full |= grammar->n_element + seq->n > MOST_ELEMENTS;
    if (!grammar->full) {
        RESERVE(grammar->element, grammar->n_element + seq->n, grammar->cap_element);
        *APPEND(r->alt, r->n) = grammar->n_element;
        memcpy(grammar->element + grammar->n_element, seq->v, (size_t)seq->n * sizeof *seq->v);
        grammar->n_element += seq->n;
    }
    free(seq->v);
    *seq = (struct sequence){0};
}

static void put_set(struct grammar *grammar, struct sequence *seq, const struct set *set)
{
    *APPEND(grammar->set, grammar->n_set) = *set;
    put_element(seq, (struct element){.kind = ELEMENT_SET, .at = grammar->n_set - 1});
}

static void put_range(struct grammar *grammar, struct sequence *seq, int from, int to)
{
    struct set set = {0};
    set_add(&set, from, to);
    put_set(grammar, seq, &set);
}

void put_bytes(struct grammar *grammar, struct sequence *seq, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int byte = (unsigned char)p[i];
        if (!grammar->byte[byte]) {
            put_range(grammar, seq, byte, byte);
            grammar->byte[byte] = grammar->n_set;
        } else {
            put_element(seq, (struct element){.kind = ELEMENT_SET, .at = grammar->byte[byte] - 1});
        }
    }
}

/* Reads the bytes between [ and ]; returns the address of the ]. */
static const char *read_bytes(const char *p, struct set *set)
{
    do {
        int from = (unsigned char)*p++, to = from;
        if (p[0] == '-' && p[1] != ']') {
            to = (unsigned char)p[1];
            p += 2;
        }
        set_add(set, from, to);
    } while (*p != ']');
    return p;
}

static void put_repeat(struct sequence *seq, va_list *ap)
{
    int rule = va_arg(*ap, int), min = va_arg(*ap, int), max = va_arg(*ap, int);
    if (max > 0)
        put_element(seq,
                    (struct element){.kind = ELEMENT_REPEAT, .at = rule, .min = min, .max = max});
}

static void put_form(struct grammar *grammar, struct sequence *seq, const char *form, va_list *ap)
{
    const char *text;
    struct set set;
    int from;
    for (; *form; form++) {
        if (*form != '%') {
            put_bytes(grammar, seq, form, 1);
            continue;
        }
        switch (*++form) {
        case 'c': put_element(seq,
                              (struct element){.kind = ELEMENT_CALL,
                                               .at = va_arg(*ap, int)}); break;
        case '*': put_repeat(seq, ap); break;
        case 's': put_set(grammar, seq, va_arg(*ap, const struct set *)); break;
        case 'r':
            from = va_arg(*ap, int);
            put_range(grammar, seq, from, va_arg(*ap, int));
            break;
        case 't':
            text = va_arg(*ap, const char *);
            put_bytes(grammar, seq, text, strlen(text));
            break;
        default:
            CHECK(*form == '[');
            set = (struct set){0};
            form = read_bytes(form + 1, &set);
            put_set(grammar, seq, &set);
        }
    }
}

void grammar_put(struct grammar *grammar, struct sequence *seq, const char *form, ...)
{
    WITH_ARGS(ap, form, put_form(grammar, seq, form, &ap));
}

void grammar_add(struct grammar *grammar, int rule, const char *form, ...)
{
    struct sequence seq = {0};
    WITH_ARGS(ap, form, put_form(grammar, &seq, form, &ap));
    grammar_alt(grammar, rule, &seq);
}

void put_json_string(struct grammar *grammar, struct sequence *seq, const char *p, size_t n)
{
    grammar_put(grammar, seq, "\"");
    for (size_t i = 0; i < n; i++) {
        char escape[8] = {p[i]};
        if (p[i] == '"' || p[i] == '\\')
            snprintf(escape, sizeof escape, "\\%c", p[i]);
        else if ((unsigned char)p[i] < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)p[i]);
        put_bytes(grammar, seq, escape, escape[0] == '\\' ? strlen(escape) : 1);
    }
    grammar_put(grammar, seq, "\"");
}
