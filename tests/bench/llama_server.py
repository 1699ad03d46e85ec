#!/usr/bin/env python3
"""llama.cpp of the PyPI package xllamacpp as a server on the CPU, which needs AVX2 but not AVX-512. Takes the flags of llama-server
that peer_cpu.py and peer_gguf.py give.

    llama_server.py -m FILE.gguf -t THREADS -c CONTEXT -np SLOTS --port PORT
"""
import argparse
import threading

import xllamacpp


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", required=True)
    p.add_argument("-t", type=int, required=True)
    p.add_argument("-c", type=int, required=True)
    p.add_argument("-np", type=int, required=True)
    p.add_argument("--port", type=int, required=True)
    a, _ = p.parse_known_args()  # the others choose a GPU, or no page for a browser
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = a.m, a.c, a.np, a.port
    params.cpuparams.n_threads = a.t
    server = xllamacpp.Server(params)
    print(server.listening_address, xllamacpp.get_system_info(), flush=True)
    threading.Event().wait()


main()
