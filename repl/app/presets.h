/* presets.h - sets of settings by name: files of "name=value" lines, as the config file and the log
 * have them, in the folder `presets` beside the config file. Main thread only. */
#pragma once

#include "kernels/base.h"

/* $XDG_CONFIG_HOME/aerie/presets; NULL: there is no home folder. The caller frees. */
char *presets_folder(void);
/* The names of all presets in ascending order; the caller frees them and the array. Returns how
 * many. */
int presets_list(char ***name);
/* Writes, reads, deletes a preset. lines: of settings_print(). False and *e: the name is none, or
 * the file cannot be written or read. *replaced: there was one of the name. */
bool preset_write(const char *name, const char *lines, bool *replaced, struct err *e);
bool preset_read(const char *name, struct buf *lines, struct err *e);
bool preset_delete(const char *name, struct err *e);
