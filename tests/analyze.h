/* analyze.h - what clang's analyzer is told beside a source file (tests/lint.sh): functions of other files whose result it
 * cannot know. */
#ifndef AERIE_ANALYZE_H
#define AERIE_ANALYZE_H

#include "kernels/base.h"

#define err_set(...) (err_set(__VA_ARGS__), false)
#define err_prefix(...) (err_prefix(__VA_ARGS__), false)

#endif
