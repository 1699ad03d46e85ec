/* sanitizers.h - HAS_ASAN and HAS_TSAN, 0 or 1: the sanitizers of the build. gcc defines macros for
 * them, clang has __has_feature().
 */
#pragma once

#if defined(__has_feature)
#define HAS_FEATURE_OF_CLANG(f) __has_feature(f)
#else
#define HAS_FEATURE_OF_CLANG(f) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || HAS_FEATURE_OF_CLANG(address_sanitizer)
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__) || HAS_FEATURE_OF_CLANG(thread_sanitizer)
#define HAS_TSAN 1
#else
#define HAS_TSAN 0
#endif
