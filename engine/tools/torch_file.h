/* torch_file.h - the tensors of a file of torch.save(), read as data (pickle.h).
 *
 * Such a file is a zip archive with a pickle, X/data.pkl, and the elements of each storage in a
 * member X/data/KEY. Members are stored, never compressed: a compressed one is refused, so that
 * the file cannot become larger than it is. Members lie within the file and do not overlap; each
 * tensor lies within its storage, whatever its offset and strides. Several tensors may share a
 * storage. Also safetensors files, so that both kinds are read by one name. One thread.
 */
#pragma once

#include "kernels/base.h"

enum {
    TORCH_ENTRIES = 1 << 17, /* tensors and texts of a file */
};

/* A value of the file: a tensor, or a text. Keys of dicts and indices of lists are joined with full
 * stops: {"value": T, "meta": {"name": "x"}} has "value" and "meta.name". */
struct torch_entry {
    char *name;      /* printable ASCII; "" for the whole value */
    char *text;      /* NULL: a tensor */
    enum dtype type; /* DT_OTHER: one whose elements are not read (double, float8) */
    const char *type_name;
    int n_dim;
    int64_t dim[TENSOR_DIMS], stride[TENSOR_DIMS], first; /* in elements */
    int64_t count; /* product of dim */
    int storage;   /* index of the storage; in a safetensors file of the tensor */
};

struct torch_file;

/* NULL and *e (ERR_MODEL): one line that names the file and what it holds. */
struct torch_file *torch_open(const char *path, struct err *e);
void torch_close(struct torch_file *f); /* NULL is allowed */
int torch_count(const struct torch_file *f);
const struct torch_entry *torch_at(const struct torch_file *f, int i);
const struct torch_entry *torch_find(const struct torch_file *f, const char *name);
/* Elements in row-major order: n of them from element `skip` on as float32 (of f32, f16, bf16), or
 * all as whole numbers (of i64, i32, i16, i8, u8, bool). False and *e: another type, damage, or an
 * I/O error. A storage of more than 64 MiB is read in part, without the check of its CRC. */
bool torch_floats(struct torch_file *f, const struct torch_entry *t, int64_t skip, int64_t n,
                  float *dst, struct err *e);
bool torch_wholes(struct torch_file *f, const struct torch_entry *t, int64_t *dst, struct err *e);
