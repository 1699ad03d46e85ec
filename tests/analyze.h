/* analyze.h - tests/lint.sh includes it before each source file for clang's analyzer, which does
 * not see the bodies of functions in other files: err_set() and err_prefix() always return
 * false. */
#pragma once

#include "kernels/base.h"

#define err_set(...) (err_set(__VA_ARGS__), false)
#define err_prefix(...) (err_prefix(__VA_ARGS__), false)
