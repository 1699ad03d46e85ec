#!/usr/bin/env python3
"""Runs aerie on a pseudo-terminal of 100 x 30, types a short conversation, and keeps what it draws.

    screens.py FILE COMMAND...

FILE.1.raw, FILE.2.raw ... are the bytes written until each stop; `cat` in a terminal of that size shows the screen.
"""
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

STOPS = [
    ["My dog is called Rex.\r", "What is my dog called?\r", "Tell me a story about a fox.\r"],
    ["/layout debug\r"],
    ["/layout chat\r", "\x1bOS"],  # F4: the steps
    ["\x1b[15~"],                  # F5: the pools
    ["/layout chat\r", "/stats\r"],
]


def main():
    n = 0
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(sys.argv[2], sys.argv[2:])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    raw = b""

    def take(seconds):
        nonlocal raw
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([fd], [], [], left)[0]:
                try:
                    raw += os.read(fd, 65536)
                except OSError:
                    return

    take(1.5)
    for n, keys in enumerate(STOPS, 1):
        for k in keys:
            os.write(fd, k.encode())
            take(2 if k.endswith(".\r") or k.endswith("?\r") else 0.7)
        with open(f"{sys.argv[1]}.{n}.raw", "wb") as f:
            f.write(raw)
    os.write(fd, b"/bye\r")
    take(1)
    print(f"{n} screens, {len(raw)} bytes")


main()
