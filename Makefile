# aerie: `make run` and `make test` set up everything they need; `make help` lists the rest.

# ---- configuration -------------------------------------------------------------------------------
# MODE=release|debug|tsan|fuzz|cover (debug: ASan + UBSan; tsan: ThreadSanitizer; fuzz: see 'make fuzz'; cover: see
# tests/covers.sh), CUDA=auto|1|0 (auto: for the GPU of this machine, if there is one; 1: for
# all that ARCH names), CC=gcc|clang, ARCH= (CUDA architectures), STAMPS=1 (line tables, and kernels note when they
# run: kernels/cuda/timeline.h), NOWAIT=1 (no kernel waits for another, wrong results, for `aerie bench` alone:
# kernels/cuda/cuda.h), STRESS=1 (kernels delay their warps at random: kernels/cuda/base/barrier.cuh), ZMQ=auto|1|0 (KV events of servers: auto: if libzmq is installed)
MODE    ?= release
CUDA    ?= auto
ZMQ     ?= auto
PREFIX  ?= /usr/local
NVCC    ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))

# compute capabilities of the GPUs in this machine that aerie can use, as in "90"; a make in a make does not ask again.
# Without a GPU or its driver nvidia-smi may print a sentence instead.
ifeq ($(origin GPUS),undefined)
  GPUS := $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | awk -F. '/^[0-9]+[.][0-9]+$$/ && $$1 >= 8 { print $$1 $$2 }'))
endif
export GPUS

ifeq ($(CUDA),auto)
  WITH_CUDA := $(if $(and $(NVCC),$(GPUS),$(filter release,$(MODE))),1,0)
else
  WITH_CUDA := $(CUDA)
endif

# nvcc before 12.0 knows neither C++20 nor wgmma; CUDA=auto then builds for the CPU
ifeq ($(WITH_CUDA),1)
  NVCC_IS := $(if $(NVCC),$(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p'))
  OLD_NVCC := $(filter 7 8 9 10 11,$(firstword $(subst ., ,$(NVCC_IS))))
  WITH_CUDA := $(if $(and $(OLD_NVCC),$(filter auto,$(CUDA))),0,1)
endif

# Without -j, all cores are used. make 4.3 hides a -j of its own command line here, but lets that one win; a -j of the
# environment stands in the environment.
ifeq ($(findstring -j,$(MAKEFLAGS) $(shell echo "$$MAKEFLAGS")),)
  MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

COMPILER := $(notdir $(firstword $(CC)))
CONFIG := $(if $(PACKAGE),package,$(MODE))-$(if $(filter 1,$(WITH_CUDA)),cuda,cpu)$(if $(filter cc gcc,$(COMPILER)),,-$(COMPILER))$(if $(STAMPS),-stamps)$(if $(NOWAIT),-nowait)$(if $(STRESS),-stress)
B      := build/$(CONFIG)

# ---- packages ------------------------------------------------------------------------------------
PACKAGES := build-essential pkg-config libncurses-dev libsqlite3-dev libpcre2-dev libjansson-dev \
            libutf8proc-dev libmd4c-dev libcurl4-openssl-dev libmicrohttpd-dev
TEST_PACKAGES := libcmocka-dev tmux sqlite3 procps curl binutils
PKGS := ncursesw sqlite3 libpcre2-8 jansson libutf8proc md4c libcurl libmicrohttpd
# the program loads these when it first needs them (kernels/late.h), and is not linked with them
LATE := libcurl libmicrohttpd
# what the program does without: libzmq receives the KV events of servers (--kv-events)
OPTIONAL := libzmq3-dev
LINT_PACKAGES := clang-tidy cppcheck shellcheck
WITH_ZMQ := $(if $(filter auto,$(ZMQ)),$(shell pkg-config --exists libzmq 2>/dev/null && echo 1 || echo 0),$(ZMQ))
PKGS     += $(if $(filter 1,$(WITH_ZMQ)),libzmq)
PACKAGES += $(if $(filter 1,$(ZMQ)),$(OPTIONAL))

# ---- flags ---------------------------------------------------------------------------------------
# clang warns of parameters without a name, gcc does not (-Wno-c2x-extensions)
# clang takes a variable with a cleanup function (FREED() in kernels/idioms.h) for unused; gcc looks for those that are
WARN   := -Wall -Wextra -Wno-c2x-extensions -Wshadow -Wstrict-prototypes -Werror$(if $(findstring clang,$(COMPILER)), -Wno-unused-variable)
CFLAGS := -std=c11 -D_GNU_SOURCE -I. $(WARN) -g -ffp-contract=off -pthread -DHAVE_CUDA=$(WITH_CUDA) -DHAVE_ZMQ=$(WITH_ZMQ) $(if $(NOWAIT),-DNOWAIT)
CFLAGS += $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDLIBS := $(shell pkg-config --libs $(filter-out $(LATE),$(PKGS)) 2>/dev/null) -lm -lpthread -ldl
ifeq ($(MODE),debug)
  CFLAGS  += -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
  LDFLAGS += -fsanitize=address,undefined
else ifeq ($(MODE),tsan)
  CFLAGS  += -O1 -fsanitize=thread -fno-omit-frame-pointer
  LDFLAGS += -fsanitize=thread
else ifeq ($(MODE),fuzz)
  CFLAGS  += -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
  LDFLAGS += -fsanitize=address,undefined
else ifeq ($(MODE),cover)
  CFLAGS  += -O1 --coverage -fprofile-update=atomic
  LDFLAGS += --coverage
  $(B)/repl/process/isolate.o: CFLAGS += -DCOVER
else
  CFLAGS  += -O2
  # a third of the time of compiling; what tests test is compiled as the program is
  $(B)/tests/unit/%.o $(B)/tests/cuda/%.o $(B)/tests/fuzz/%.o: CFLAGS += -Og
endif
# PACKAGE=1 (make dist): no path of this machine in the program, and what distributions ask of theirs
ifneq ($(PACKAGE),)
  CFLAGS  += -ffile-prefix-map=$(CURDIR)=. -D_FORTIFY_SOURCE=2 -fstack-protector-strong -fPIE
  LDFLAGS += -pie -Wl,-z,relro,-z,now
endif

MAKEFLAGS += -r

# Targets that start a make of their own share a build folder: one after the other, each in parallel within itself. Else
# two makes of one command line (make all gpu-tests) would write the same files.
ifneq ($(filter-out build/% %-programs check-deps,$(or $(MAKECMDGOALS),all)),)
.NOTPARALLEL:
endif

# ---- sources -------------------------------------------------------------------------------------
SRC   := $(filter-out $(if $(filter 1,$(WITH_ZMQ)),,engine/remote/kv_socket.c), \
         $(wildcard $(foreach d,kernels models engine history repl,$(d)/*.c $(d)/*/*.c)))
CU    := $(if $(filter 1,$(WITH_CUDA)),$(wildcard kernels/cuda/*/*.cu kernels/cuda/*.cu))
OBJ   := $(CU:%.cu=$(B)/%.cu.o) $(SRC:%.c=$(B)/%.o) $(B)/repl/share/help_text.o # those that take longest first
LIB   := $(filter-out $(B)/repl/main.o,$(OBJ))
UNIT  := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c))
GPU   := $(filter-out %/test_standin,$(patsubst tests/cuda/%.c,$(B)/tests/%,$(wildcard tests/cuda/test_*.c)))
STANDIN := $(if $(filter 1,$(WITH_CUDA)),$(if $(STAMPS)$(NOWAIT)$(STRESS),,$(B)/tests/test_standin))
MOCK  := $(B)/tests/mock_aerie
HOOKED := $(B)/tests/hooked_aerie
PLAY  := $(B)/tests/play_server $(B)/tests/play_stream
# targets of fuzzing (tests/fuzz/README.md): each alone with libFuzzer, all of them in one test
FUZZ  := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_TEST := $(B)/tests/test_fuzz
SOAK  := $(B)/tests/soak/soak $(B)/tests/soak/shim.so
TESTS := $(UNIT) $(GPU) $(STANDIN) $(MOCK) $(HOOKED) $(PLAY) $(FUZZ_TEST)
BENCH := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/bench/*.c))
YARD  := $(B)/tests/bench/yard
LINK  := $(CC)

PATHS := -DAERIE_SHARE='"$(PREFIX)/share/aerie"' -DAERIE_SOURCE='"$(if $(PACKAGE),,$(CURDIR))"'
$(B)/repl/cli/cli.o $(B)/repl/cli/import.o: CFLAGS += $(PATHS)
$(B)/repl/cli/cli.o $(B)/repl/cli/import.o: $(B)/path.flags

# a library's file with the version that its headers are of: libcurl.so.4
soname = $(or $(shell readelf -d "$$($(CC) -print-file-name=$(1).so)" 2>/dev/null | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'),$(1).so)
SONAMES := -DLIBCURL='"$(call soname,libcurl)"' -DLIBMICROHTTPD='"$(call soname,libmicrohttpd)"'
$(B)/engine/remote/http.o $(B)/repl/http/front.o: CFLAGS += $(SONAMES)

# one vector width a file; the arithmetic is the same in all of them (kernels/kernels.h). Empty files on other processors
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
  $(B)/kernels/cpu/avx2.o:   CFLAGS += -O3 -mavx2 -mfma -mf16c
  $(B)/kernels/cpu/avx512.o: CFLAGS += -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
endif
ifeq ($(MODE),fuzz)
  # kernels meet no input from outside; comparisons of buffers, UTF-8, cells of text and targets guide no mutation, nor do
  # those of single characters of JSON, of a grammar's states and of judging a case
  $(B)/kernels/cpu/%.o: CFLAGS += -fno-sanitize=all -O1
  $(B)/kernels/base.o $(B)/kernels/utf8.o $(B)/kernels/json.o $(B)/kernels/json_read.o $(B)/models/grammar/guide.o \
  $(B)/models/grammar/grammar.o $(B)/models/grammar/number.o \
  $(B)/engine/tools/case.o $(B)/repl/text/text.o $(B)/tests/fuzz/%.o: CFLAGS += -fno-sanitize-coverage=trace-cmp
endif
ifeq ($(MODE),debug)
  # at -O3, with a check at each access of unrolled loops, gcc takes several minutes for a file
  $(B)/kernels/cpu/avx2.o $(B)/kernels/cpu/avx512.o: CFLAGS += -O1
endif
ifeq ($(MODE),cover)
  # minutes to compile, and slow, with counts in unrolled loops; scalar.o, compiled from the same source, has them
  $(B)/kernels/cpu/avx2.o $(B)/kernels/cpu/avx512.o: CFLAGS += -fno-profile-arcs -fno-test-coverage
endif
ifeq ($(MODE),tsan)
  # these loops are a hundred times slower instrumented; scalar.o, compiled from the same source, is instrumented
  $(B)/kernels/cpu/avx2.o $(B)/kernels/cpu/avx512.o: CFLAGS += -fno-sanitize=thread
endif

ifeq ($(WITH_CUDA),1)
  # ARCH: a number is machine code for a compute capability and the later ones of its generation (90: as 90a, with
  # wgmma, for 9.0 alone), N+ptx is PTX, which a driver compiles for any GPU from N on when the program first starts.
  # CUDA=auto: the GPUs of this machine. CUDA=1: Ampere with Ada, Hopper, desktop Blackwell; PTX for the others.
  KNOWN     := $(if $(NVCC),$(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code 2>/dev/null)))
  ARCH      ?= $(if $(filter auto,$(CUDA)),$(foreach g,$(GPUS),$(if $(filter $(g),$(KNOWN)),$(g),90+ptx)),$(filter $(KNOWN),80 90 120) 90+ptx)
  CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
  CODES     := $(sort $(patsubst 90,90a,$(ARCH)))
  # GPUs after Hopper get code from the PTX for 9.0: nothing here uses more, and the front end runs once for both
  virtual    = $(if $(filter 1%,$(1)),90,$(1:%+ptx=%))
  GENCODE   := $(foreach a,$(CODES),-gencode arch=compute_$(call virtual,$(a)),code=$(if $(filter %+ptx,$(a)),compute_$(call virtual,$(a)),sm_$(a)))
  # -fmad=false: fused only where the source says so (kernels/cuda/cuda.h)
  NVFLAGS   := -std=c++20 -O3 -I. -fmad=false -DHAVE_CUDA=1 -DCUDA_CODES='"$(CODES)"' -Xcompiler -Wall,-Wextra \
               $(GENCODE) $(if $(STAMPS),-DSTAMPS -lineinfo) $(if $(STRESS),-DSTRESS -lineinfo) $(if $(NOWAIT),-DNOWAIT)
  LDLIBS    += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
endif

.DEFAULT_GOAL := all
.PHONY: covers crash resources docs all run dist test test-tsan tsan-programs lint lint-deps fuzz fuzz-programs soak soak-programs tests gpu-tests test-standin bench yard install machines uninstall deps test-deps packages optional-packages check-deps clean format tasks help FORCE

all: check-deps ## build the program (build/aerie)
	@$(MAKE) -s --no-print-directory $(B)/aerie
	@$(if $(filter release,$(MODE)$(PACKAGE)),ln -sfn $(CONFIG)/aerie build/aerie)

run: deps ## install what is missing, build, and open the chat
	@$(MAKE) --no-print-directory all
	@$(B)/aerie; rc=$$?; [ $$rc = 5 ] || exit $$rc # 5: a rule was violated in the chat, as the README's fifth thing shows

# GPUs: machine code for the common ones, PTX for the others; needs nvcc, and no GPU. Its program needs the driver alone.
# ZMQ=1: what a package can do and what it depends on must not hang on the machine that makes it.
dist: DIST := PACKAGE=1 PREFIX=/usr ZMQ=1 CUDA=$(if $(NVCC),1,0)
dist: ## make build/dist: a Debian package, a tar.zst and their checksums (for GPUs, too, if there is nvcc)
	@$(MAKE) --no-print-directory $(DIST) deps
	@{ command -v dpkg-deb && command -v zstd; } >/dev/null || { $(call apt-install,dpkg-dev zstd); }
	@$(MAKE) --no-print-directory $(DIST) check-deps build/$(if $(NVCC),package-cuda,package-cpu)/aerie
	@rm -rf build/dist
	@$(MAKE) -s --no-print-directory $(DIST) DESTDIR=$(CURDIR)/build/dist/root install
	@repl/share/package.sh build/dist/root build/dist $(if $(NVCC),cuda,cpu)
	@rm -rf build/dist/root

test: deps test-deps ## install what is missing, build (benchmarks, too), and run every test
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory TOLD=1 tests
	@$(if $(filter tsan debug,$(MODE)),TEST_TIMEOUT=1800) tests/run.sh $(B)

test-tsan: deps test-deps ## build with ThreadSanitizer and run the tests in which threads meet (two minutes on two cores)
	@$(MAKE) --no-print-directory MODE=tsan CUDA=0 TOLD=1 tsan-programs
	@tests/tsan.sh build/tsan-cpu

tsan-programs: ; @$(MAKE) -s --no-print-directory $(B)/aerie $(addprefix $(B)/tests/,$(shell tests/tsan.sh --programs))

covers: test-deps ## which tests cover which source file: a table, and the files that none covers (half an hour; ONLY="test_a test_b")
	@tests/covers.sh $(ONLY)

fuzz: test-deps ## run every target of tests/fuzz for T seconds (T=60) with libFuzzer (needs clang)
	@command -v clang >/dev/null || { echo "aerie: 'make fuzz' needs clang, which was not found; skipped (make test feeds the same targets without it)"; exit 0; }; \
	$(MAKE) -s --no-print-directory MODE=fuzz CC=clang CUDA=0 fuzz-programs && tests/fuzz/run.sh build/fuzz-cpu-clang $(or $(T),60) $(ONLY)

FAULTS := $(B)/tests/test_every_call
TESTS += $(FAULTS)
.PHONY: faults
faults: tests ## let every call fail in turn, one a run, in scripted sessions (hours; ONLY="chat write", JOBS=N)
	@BUILD=$(B) EVERY_CALL=all $(FAULTS)

.PHONY: bugs
bugs: all ## which tool finds which historical fault: writes tests/bench/bugs.tsv (half an hour; ONLY="24617 9279" prints those)
	@AERIE=$(CURDIR)/$(B)/aerie tests/bench/bugs.sh $(if $(ONLY),/dev/null $(ONLY),tests/bench/bugs.tsv)

fuzz-programs: $(if $(filter fuzz,$(MODE)),$(FUZZ:%=$(B)/fuzz/%))

soak: deps ## a day of heavy use in T seconds (T=600): two instances driven at random; SEED=N repeats a run (tests/soak)
	@$(MAKE) --no-print-directory CUDA=0 all
	@$(MAKE) -s --no-print-directory CUDA=0 TOLD=1 soak-programs
	@build/release-cpu/tests/soak/soak build/release-cpu $(or $(T),600) $(or $(SEED),$$(date +%s)) $(if $(LEAK),--leak $(LEAK))

soak-programs: $(SOAK)

crash: tests ## cut the power at every change of a file, and kill -9 at 1000 moments (half an hour on two cores)
	@CUTS=all CMOCKA_MESSAGE_OUTPUT=STDOUT $(B)/tests/test_power
	@AERIE=$(CURDIR)/$(B)/aerie BUILD=$(CURDIR)/$(B) KILLS=1000 RANDOM_KILLS=100 SECONDS_MOST=600 tests/e2e/test_kill.sh

lint: deps ## static analysis: fails on every finding that the code does not answer (tests/lint.sh)
	@tests/lint.sh $(CFLAGS) $(PATHS) $(SONAMES)

lint-deps: ## install what 'make lint' runs
	@{ command -v clang-tidy && command -v cppcheck && command -v shellcheck; } >/dev/null || { $(call apt-install,$(LINT_PACKAGES)); }

tests: all ## build the test programs and the benchmarks
	@$(MAKE) -s --no-print-directory $(B)/aerie $(TESTS) $(BENCH)

gpu-tests: check-deps ## build the program and the tests that use a GPU (with CUDA=1: no GPU is needed)
	@$(MAKE) --no-print-directory $(B)/aerie $(GPU) $(STANDIN)

test-standin: gpu-tests ## check the calls of the CUDA backend without a GPU (needs nvcc: CUDA=1)
	@tests/run.sh $(B) 'test_standin$$'

resources: ## check registers, spills and shared memory of the CUDA kernels that were built (with CUDA=1: no GPU is needed)
	@$(MAKE) --no-print-directory $(B)/aerie
	@tests/resources.sh $(B)

bench: all ## measure; figures go to standard output (nothing here gates a test)
	@$(MAKE) --no-print-directory $(BENCH)
	@tests/bench/run.sh $(B)

yard: all ## cycles and joules of a prompt's products beside cuBLASLt's and CUTLASS's (needs a GPU, and fetches CUTLASS: tests/bench/yard.sh)
	@$(if $(filter 1,$(WITH_CUDA)),,echo "aerie: 'make yard' needs a GPU; this build is for the CPU" >&2; exit 2)
	@$(MAKE) --no-print-directory $(YARD)
	@tests/bench/yard.sh $(B)

# ---- packages: apt where there is apt, one clear line elsewhere ----------------------------------
# what is built, for the one line that says so
WHY_CPU := $(if $(filter debug,$(MODE)),a debug build,$(if $(filter 0,$(CUDA)),CUDA=0,$(if $(GPUS),$(if $(OLD_NVCC),the CUDA \
  toolkit here is $(NVCC_IS); the GPU of this machine needs 12.0 or newer,no CUDA toolkit for the GPU of this machine),no NVIDIA GPU in this machine; 'make dist' builds for GPUs$(if $(NVCC),, but needs the CUDA toolkit))))
FOR := $(if $(filter 1,$(WITH_CUDA)),the CPU and for GPUs: $(CODES),the CPU ($(strip $(WHY_CPU))))

check-deps:
	@command -v $(CC) pkg-config >/dev/null && pkg-config --exists $(PKGS) || \
	  { echo "aerie: libraries are missing; 'make run' installs them, or install: $(PACKAGES)" >&2; exit 2; }
	@$(if $(filter 1,$(WITH_CUDA)),$(if $(NVCC),,echo "aerie: CUDA=1 needs the CUDA toolkit: nvcc was not found" >&2; exit 2))
	@$(if $(filter 1,$(WITH_CUDA)),$(if $(OLD_NVCC),echo "aerie: CUDA=1 needs the CUDA toolkit 12.0 or newer: $(NVCC) is $(NVCC_IS)" >&2; exit 2))
	@$(if $(TOLD),,echo "aerie: building for $(FOR)$(if $(filter 1,$(WITH_ZMQ)),,; without $(OPTIONAL), which only --kv-events needs)")

define apt-install
  set -e; want="$(1)"; \
  command -v apt-get >/dev/null || { echo "aerie: this is not a Debian or Ubuntu system; please install: $$want" >&2; exit 2; }; \
  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
  command -v env $$sudo >/dev/null || { echo "aerie: neither root nor sudo; please have root run: apt-get install $$want" >&2; exit 2; }; \
  echo "aerie: installing $$want"; \
  $$sudo apt-get update -qq </dev/null; \
  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$want </dev/null >/dev/null
endef

packages: ; @echo $(PACKAGES) $(TEST_PACKAGES)

optional-packages: ; @echo $(OPTIONAL)

deps:
	@{ command -v cc && command -v pkg-config && pkg-config --exists $(PKGS); } >/dev/null 2>&1 || { $(call apt-install,$(PACKAGES)); }
	@$(if $(filter deps,$(MAKECMDGOALS)),$(if $(filter 1,$(WITH_ZMQ)),,echo "aerie: optional, for KV events of servers: $(OPTIONAL)"))

test-deps: deps
	@{ pkg-config --exists cmocka && command -v tmux && command -v sqlite3 && command -v curl; } >/dev/null 2>&1 || { $(call apt-install,$(TEST_PACKAGES)); }

# ---- building ------------------------------------------------------------------------------------
# a file of flags changes only when the flags do: other flags build again what they apply to, the same ones nothing
c.flags    := $(CC) $(CFLAGS)
cu.flags   := $(NVCC) $(NVFLAGS)
link.flags := $(CC) $(LDFLAGS) $(LDLIBS)
path.flags := $(PATHS)
fuzz.list  := $(foreach t,$(FUZZ),X($(t)))
$(B)/c.flags $(B)/cu.flags $(B)/link.flags $(B)/path.flags $(B)/fuzz.list: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(subst ','\'',$($(@F)))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$($(@F)))' > $@

$(B)/%.o: %.c $(B)/c.flags
	@mkdir -p $(@D); echo "  CC    $<"; $(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/%.cu.o: %.cu $(B)/cu.flags
	@mkdir -p $(@D); echo "  NVCC  $<"; echo "compiler $(NVCC_IS)" >$(@:.o=.ptxas); \
	  $(NVCC) $(NVFLAGS) -Xptxas -v -MMD -MP -c $< -o $@ 2>>$(@:.o=.ptxas); rc=$$?; \
	  grep -vE '^compiler |^ptxas info|bytes stack frame|^$$' $(@:.o=.ptxas) >&2; exit $$rc

$(B)/repl/share/help_text.c: $(addprefix repl/share/,help_text.awk topics.txt examples.txt aerie.1)
	@mkdir -p $(@D); LC_ALL=C awk -f $< from=topics repl/share/topics.txt from=examples repl/share/examples.txt from=manual repl/share/aerie.1 >$@.new && mv $@.new $@
$(B)/repl/share/help_text.o: $(B)/repl/share/help_text.c $(B)/c.flags
	@echo "  CC    $<"; $(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/aerie: $(OBJ) $(B)/link.flags
	@echo "  LINK  $@"; $(LINK) $(LDFLAGS) $(filter %.o,$^) $(LDLIBS) -o $@

# Tests are linked with the files that they need only: a fifth of the time, and libFuzzer looks at the counters of all files
# that are linked after every input.
CMOCKA := $(shell pkg-config --libs cmocka 2>/dev/null)
$(B)/lib.a: $(LIB) ; @rm -f $@.new; ar rcsT $@.new $^ && mv $@.new $@
define link-test
  @echo "  LINK  $@"; $(LINK) $(LDFLAGS) $(filter %.o %.a,$^) $(CMOCKA) $(LDLIBS) -o $@
endef
ALONE := $(B)/tests/test_differ $(B)/tests/test_verdict $(B)/tests/test_served_diff
$(filter-out $(ALONE),$(UNIT)): $(B)/tests/%: $(B)/tests/unit/%.o $(B)/lib.a $(B)/link.flags ; $(link-test)
# repl/compare is a layer below the program: these tests have all its files, and of repl/ what is below them
COMPARE := $(filter $(B)/repl/compare/%,$(LIB))
$(B)/below.a: $(filter-out $(COMPARE) $(B)/repl/%,$(LIB)) $(filter $(B)/repl/process/% $(B)/repl/text/%,$(LIB))
	@rm -f $@.new; ar rcsT $@.new $^ && mv $@.new $@
$(ALONE): $(B)/tests/%: $(B)/tests/unit/%.o $(COMPARE) $(B)/below.a $(B)/link.flags ; $(link-test)
$(GPU): $(B)/tests/%: $(B)/tests/cuda/%.o $(B)/lib.a $(B)/link.flags ; $(link-test)
# in place of libcudart a stand-in, which lacks what nothing calls: a new call of the runtime does not link
$(B)/tests/test_standin: LDLIBS := $(filter-out -lcudart_static,$(LDLIBS))
$(B)/tests/test_standin: $(B)/tests/cuda/test_standin.o $(B)/tests/cuda/standin.o $(B)/lib.a $(B)/link.flags ; $(link-test)
$(B)/tests/cuda/test_standin.o $(B)/tests/cuda/standin.o: CFLAGS += -isystem $(CUDA_HOME)/include
# the program over another backend: repl/process/open.c is all that it replaces
$(MOCK): %: %.o $(filter-out $(B)/repl/process/open.o,$(OBJ)) $(B)/link.flags
	@echo "  LINK  $@"; $(LINK) $(LDFLAGS) $(filter %.o,$^) $(LDLIBS) -o $@
# the program with functions of the C library replaced
$(HOOKED): %: %.o $(OBJ) $(B)/link.flags
	@echo "  LINK  $@"; $(LINK) $(LDFLAGS) $(filter %.o,$^) $(LDLIBS) -o $@
# all targets in one program: their functions get names of their own
ifneq ($(MODE),fuzz)
  $(foreach t,$(FUZZ),$(eval $(B)/tests/fuzz/fuzz_$(t).o: CFLAGS += -DLLVMFuzzerTestOneInput=target_$(t) -Dfuzz_inputs=inputs_$(t)))
  $(B)/tests/fuzz/driver.o: CFLAGS += -DFUZZ_LIST='"$(B)/fuzz.list"'
  $(B)/tests/fuzz/driver.o: $(B)/fuzz.list
endif
$(FUZZ_TEST): $(FUZZ:%=$(B)/tests/fuzz/fuzz_%.o) $(B)/tests/fuzz/driver.o $(B)/lib.a $(B)/link.flags ; $(link-test)
$(FUZZ:%=$(B)/fuzz/%): $(B)/fuzz/%: $(B)/tests/fuzz/fuzz_%.o $(B)/lib.a $(B)/link.flags
	@mkdir -p $(@D); echo "  LINK  $@"; $(LINK) $(LDFLAGS) -fsanitize=fuzzer $(filter %.o %.a,$^) $(CMOCKA) $(LDLIBS) -o $@
# every call fails in turn: one program, and a library that is loaded into the program under test
$(FAULTS): $(patsubst tests/%.c,$(B)/tests/%.o,$(filter-out %/preload.c,$(wildcard tests/faults/*.c))) $(B)/lib.a $(B)/tests/faults/preload.so $(B)/link.flags
	@echo "  LINK  $@"; $(LINK) $(LDFLAGS) $(filter %.o %.a,$^) $(LDLIBS) -o $@
$(B)/tests/faults/preload.so: tests/faults/preload.c tests/faults/shared.h $(B)/c.flags
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) -fPIC -shared $< -o $@
# two instances, driven for long; the shim is loaded into them (tests/soak/soak.c)
$(B)/tests/soak/soak: $(patsubst %.c,$(B)/%.o,$(filter-out %/shim.c,$(wildcard tests/soak/*.c))) $(B)/lib.a $(B)/link.flags
	@echo "  LINK  $@"; $(LINK) $(LDFLAGS) $(filter %.o %.a,$^) -lutil $(LDLIBS) -o $@
$(B)/tests/soak/shim.so: tests/soak/shim.c $(B)/c.flags
	@mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(CFLAGS) -shared -fPIC $< -ldl -o $@
$(BENCH) $(PLAY): %: %.o $(B)/lib.a $(B)/link.flags ; $(link-test)
# a yardstick beside other libraries; the headers of CUTLASS are for it alone
$(YARD): %: %.cu.o %_cutlass.cu.o $(B)/lib.a $(B)/link.flags ; $(link-test)
$(YARD)_cutlass.cu.o: NVFLAGS += -isystem build/cutlass
$(YARD)_cutlass.cu.o: | build/cutlass
build/cutlass: ; @tests/bench/yard.sh --headers $@

-include $(OBJ:.o=.d) $(wildcard $(B)/tests/*/*.d $(B)/tests/*.d)
.SECONDARY:

# ---- installing ----------------------------------------------------------------------------------
# SOURCE:TARGET below PREFIX, once for install and uninstall
INSTALLED := repl/share/aerie.1:share/man/man1/aerie.1 repl/share/aerie.bash:share/bash-completion/completions/aerie \
  repl/share/aerie.zsh:share/zsh/site-functions/_aerie repl/share/aerie.fish:share/fish/vendor_completions.d/aerie.fish \
  repl/share/sglang_dump.py:share/aerie/sglang_dump.py \
  $(foreach f,$(sort $(wildcard models/nestling/target/* models/nestling/draft/* models/nestling/block/*)),$(f):share/aerie/$(f))
define newline


endef

install: all ## install below PREFIX (/usr/local): program, bundled model, manual, completions
	install -D -m 755 $(B)/aerie $(DESTDIR)$(PREFIX)/bin/aerie
	$(foreach f,$(INSTALLED),install -D -m 644 $(subst :, $(DESTDIR)$(PREFIX)/,$(f))$(newline)	)

uninstall: ## remove what install put below PREFIX; sessions and settings of users stay
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/aerie $(foreach f,$(INSTALLED),$(lastword $(subst :, ,$(f)))))
	[ ! -d $(DESTDIR)$(PREFIX)/share/aerie ] || find $(DESTDIR)$(PREFIX)/share/aerie -depth -type d -empty -delete

# ---- the rest ------------------------------------------------------------------------------------
clean: ## remove everything built
	rm -rf build

format: ## format the lines you changed (clang-format)
	@git clang-format --force --quiet --extensions c,h,cu,cuh || true

machines: ## build and try with other compilers, processors, C libraries, locales and page sizes (root; an hour; ONLY="gcc-15 aarch64")
	@tests/machines.sh $(ONLY)

tasks: all ## 40 tasks by keys in terminals of two sizes: how many keys each takes
	AERIE=$(B)/aerie tests/tasks.sh

docs: all ## make the generated parts of the documents new (tests/docs.sh)
	@for f in $$(grep -lE '^(<!--|\.\\") make docs: ' README.md */README.md tests/bench/*.md repl/share/aerie.1); do \
	  AERIE=$(B)/aerie tests/docs.sh $$f > $(B)/docs.md && cp $(B)/docs.md $$f || exit 1; done

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo "  options: MODE=debug|tsan  CUDA=0|1  ZMQ=0|1  CC=clang  PREFIX=/usr/local  ARCH='80 90+ptx'  -j1"
