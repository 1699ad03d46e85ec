# aerie: `make run` and `make test` set up everything they need; `make help` lists the rest.

# ---- configuration -------------------------------------------------------------------------------
# MODE=release|debug (debug: ASan + UBSan), CUDA=1|0|auto, CC=gcc|clang, ARCH= (CUDA architectures),
# STAMPS=1 (kernels note when they run: kernels/cuda/timeline.h)
MODE    ?= release
CUDA    ?= auto
PREFIX  ?= /usr/local
NVCC    ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))

ifeq ($(CUDA),auto)
  WITH_CUDA := $(if $(and $(NVCC),$(wildcard kernels/cuda/*.cu),$(filter release,$(MODE))),1,0)
else
  WITH_CUDA := $(CUDA)
endif

COMPILER := $(notdir $(firstword $(CC)))
CONFIG := $(MODE)-$(if $(filter 1,$(WITH_CUDA)),cuda,cpu)$(if $(filter cc gcc,$(COMPILER)),,-$(COMPILER))$(if $(STAMPS),-stamps)
B      := build/$(CONFIG)

# ---- packages ------------------------------------------------------------------------------------
PACKAGES := build-essential pkg-config libncurses-dev libsqlite3-dev libpcre2-dev libjansson-dev \
            libutf8proc-dev libmd4c-dev
TEST_PACKAGES := libcmocka-dev tmux sqlite3
PKGS := ncursesw sqlite3 libpcre2-8 jansson libutf8proc md4c

# ---- flags ---------------------------------------------------------------------------------------
WARN   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror
CFLAGS := -std=c11 -D_GNU_SOURCE -I. $(WARN) -g -ffp-contract=off -pthread -DHAVE_CUDA=$(WITH_CUDA)
CFLAGS += $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
CFLAGS += -DAERIE_SHARE='"$(PREFIX)/share/aerie"' -DAERIE_SOURCE='"$(CURDIR)"'
LDLIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread
ifeq ($(MODE),debug)
  CFLAGS  += -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
  LDFLAGS += -fsanitize=address,undefined
else
  CFLAGS  += -O2
endif

MAKEFLAGS += -r

# ---- sources -------------------------------------------------------------------------------------
SRC   := $(wildcard $(foreach d,kernels models engine history repl,$(d)/*.c $(d)/*/*.c))
CU    := $(if $(filter 1,$(WITH_CUDA)),$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu))
OBJ   := $(SRC:%.c=$(B)/%.o) $(CU:%.cu=$(B)/%.cu.o)
LIB   := $(filter-out $(B)/repl/main.o,$(OBJ))
UNIT  := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/test_*.c))
GPU   := $(patsubst tests/cuda/%.c,$(B)/tests/%,$(wildcard tests/cuda/test_*.c))
TESTS := $(UNIT) $(GPU)
BENCH := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/bench/bench_*.c))
LINK  := $(CC)

# one vector width a file; the arithmetic is the same in all of them (kernels/kernels.h)
$(B)/kernels/cpu/avx2.o:   CFLAGS += -O3 -mavx2 -mfma -mf16c
$(B)/kernels/cpu/avx512.o: CFLAGS += -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512

ifeq ($(WITH_CUDA),1)
  # the GPU that is here, else every one since Ampere, and PTX for what comes later
  HERE      := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
  ARCH      ?= $(or $(HERE),80 86 89 90 100 120 120+ptx)
  CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
  GENCODE   := $(foreach a,$(patsubst 90,90a,$(ARCH)),-gencode arch=compute_$(a:%+ptx=%),code=$(if $(filter %+ptx,$(a)),compute_$(a:%+ptx=%),sm_$(a)))
  # -fmad=false: fused only where the source says so (kernels/cuda/cuda.h)
  NVFLAGS   := -std=c++20 -O3 -I. -fmad=false -lineinfo -DHAVE_CUDA=1 -Xcompiler -Wall,-Wextra --threads 2 $(GENCODE) $(if $(STAMPS),-DSTAMPS)
  LDLIBS    += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
endif

.DEFAULT_GOAL := all
.PHONY: docs all run test tests bench install deps test-deps check-deps clean format help FORCE

all: check-deps ## build the program (build/aerie)
	@$(MAKE) --no-print-directory $(B)/aerie
	@$(if $(filter release,$(MODE)),ln -sfn $(CONFIG)/aerie build/aerie)

run: deps ## install what is missing, build, and open the chat
	@$(MAKE) --no-print-directory all
	@$(B)/aerie

test: deps test-deps ## install what is missing, build (benchmarks, too), and run every test
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory tests
	@tests/run.sh $(B)

tests: check-deps ## build the test programs and the benchmarks
	@$(MAKE) --no-print-directory $(B)/aerie $(TESTS) $(BENCH)

bench: all ## measure; figures go to standard output (nothing here gates a test)
	@$(MAKE) --no-print-directory $(BENCH)
	@tests/bench/run.sh $(B)

# ---- packages: apt where there is apt, one clear line elsewhere ----------------------------------
check-deps:
	@command -v $(CC) pkg-config >/dev/null && pkg-config --exists $(PKGS) || \
	  { echo "aerie: libraries are missing; 'make run' installs them, or install: $(PACKAGES)" >&2; exit 2; }
	@$(if $(filter 1,$(WITH_CUDA)),true,echo "aerie: building for the CPU only ($(if $(filter debug,$(MODE)),debug build,$(if $(filter 0,$(CUDA)),CUDA=0,no CUDA toolkit found)))")

define apt-install
  set -e; want="$(1)"; \
  command -v apt-get >/dev/null || { echo "aerie: this is not a Debian or Ubuntu system; please install: $$want" >&2; exit 2; }; \
  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
  echo "aerie: installing $$want"; \
  $$sudo apt-get update -qq; \
  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$want >/dev/null
endef

deps:
	@{ command -v cc && command -v pkg-config && pkg-config --exists $(PKGS); } >/dev/null 2>&1 || { $(call apt-install,$(PACKAGES)); }

test-deps: deps
	@{ pkg-config --exists cmocka && command -v tmux && command -v sqlite3; } >/dev/null 2>&1 || { $(call apt-install,$(TEST_PACKAGES)); }

# ---- building ------------------------------------------------------------------------------------
# the flags file changes only when the flags do, so a new flag rebuilds and an old one does not
FLAGS := $(CC) $(CFLAGS) $(LDFLAGS) $(LDLIBS) $(NVCC) $(NVFLAGS)
$(B)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(subst ','\'',$(FLAGS))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(FLAGS))' > $@

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D); echo "  CC    $<"; $(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/%.cu.o: %.cu $(B)/flags
	@mkdir -p $(@D); echo "  NVCC  $<"; $(NVCC) $(NVFLAGS) -MMD -MP -c $< -o $@

$(B)/aerie: $(OBJ)
	@echo "  LINK  $@"; $(LINK) $(LDFLAGS) $^ $(LDLIBS) -o $@

define link-test
  @echo "  LINK  $@"; $(LINK) $(LDFLAGS) $^ $(shell pkg-config --libs cmocka 2>/dev/null) $(LDLIBS) -o $@
endef
$(UNIT): $(B)/tests/%: $(B)/tests/unit/%.o $(LIB) ; $(link-test)
$(GPU): $(B)/tests/%: $(B)/tests/cuda/%.o $(LIB) ; $(link-test)
$(BENCH): %: %.o $(LIB) ; $(link-test)

-include $(OBJ:.o=.d) $(wildcard $(B)/tests/*/*.d)
.SECONDARY:

# ---- installing ----------------------------------------------------------------------------------
SHARE := $(DESTDIR)$(PREFIX)/share
install: all ## install below PREFIX: program, bundled model, manual, completions
	install -d $(DESTDIR)$(PREFIX)/bin $(SHARE)/man/man1 $(SHARE)/aerie/models/nestling/target \
	  $(SHARE)/aerie/models/nestling/draft $(SHARE)/bash-completion/completions \
	  $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	install -m 755 $(B)/aerie $(DESTDIR)$(PREFIX)/bin/aerie
	install -m 644 models/nestling/target/* $(SHARE)/aerie/models/nestling/target/
	install -m 644 models/nestling/draft/* $(SHARE)/aerie/models/nestling/draft/
	install -m 644 repl/share/aerie.1 $(SHARE)/man/man1/aerie.1
	install -m 644 repl/share/aerie.bash $(SHARE)/bash-completion/completions/aerie
	install -m 644 repl/share/aerie.zsh $(SHARE)/zsh/site-functions/_aerie
	install -m 644 repl/share/aerie.fish $(SHARE)/fish/vendor_completions.d/aerie.fish

# ---- the rest ------------------------------------------------------------------------------------
clean: ## remove everything built
	rm -rf build

format: ## format the lines you changed (clang-format)
	@git clang-format --force --quiet --extensions c,h,cu,cuh || true

# a table of the README that begins with this row, from this file
define put-table
  awk -v t=$(2) -v first='$(1)' 'index($$0, first) == 1 { while ((getline l < t) > 0) print l; skip = 1 } \
    skip && /^$$/ { skip = 0 } !skip' README.md > $(B)/README.md && cp $(B)/README.md README.md
endef

docs: all ## write the program's own command table and the figures of tests/bench/h200.jsonl into the README
	@$(B)/aerie help commands > $(B)/commands.md
	@$(call put-table,| command |,$(B)/commands.md)
	@[ ! -f tests/bench/h200.jsonl ] || { tests/bench/table.sh readme tests/bench/h200.jsonl > $(B)/h200.md; \
	  $(call put-table,| one conversation on an H200 |,$(B)/h200.md); }

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'
	@echo "  options: MODE=debug  CUDA=0|1  CC=clang  PREFIX=/usr/local  ARCH='90 120+ptx'"
