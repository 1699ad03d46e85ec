#!/usr/bin/env python3
"""Runs a command, interrupts it (SIGINT) when it has written 40 bytes, and says how long its end took."""
import os
import signal
import subprocess
import sys
import time

p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
begin, text, asked = time.monotonic(), b"", 0.0
while data := os.read(p.stdout.fileno(), 4096):
    text += data
    if not asked and len(text) >= 40:
        asked = time.monotonic()
        p.send_signal(signal.SIGINT)
rc = p.wait()
end = time.monotonic()
print(text.decode(errors="replace"))
print(f"interrupted after {asked - begin:.3f} s; ended {1000 * (end - asked):.1f} ms later with status {rc}"
      if asked else f"ended by itself with status {rc}")
