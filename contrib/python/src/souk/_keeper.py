"""Keeps a testnet up until standard input closes, which it does however its owner ends.

    python -I _keeper.py BINARY FOLDER REMOVE ARGUMENT...

It starts `souk testnet up`, hands on its process and its first line, and waits. Then it stops the
testnet and, where REMOVE is 1, removes the folder. It runs by itself, so the kernel of a notebook
that is killed leaves nothing behind; and it imports nothing but what comes with Python.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading

# How long a testnet may take to stop before it is killed.
_STOP_SECONDS = 20.0


def main() -> int:
    """Start it, wait, stop it."""
    binary, folder, remove, *arguments = sys.argv[1:]
    # Ctrl-C reaches every process of a terminal; whether the testnet ends by it its owner says.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = [binary, "--dir", folder, "--json", "testnet", "up", *arguments]
    testnet = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    if testnet.stdout is not None:
        sys.stdout.buffer.write(b"%d\n" % testnet.pid + testnet.stdout.readline())
        sys.stdout.close()
        # What it says later nobody waits for, and it must not wait to be read.
        threading.Thread(target=testnet.stdout.read, daemon=True).start()
    # One that ends by itself is found by whoever asks it next.
    sys.stdin.buffer.read()
    code = _stop(testnet)
    if remove == "1":
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _stop(testnet: subprocess.Popen[bytes]) -> int:
    testnet.send_signal(signal.SIGINT)
    try:
        return testnet.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        testnet.kill()
        return testnet.wait()


if __name__ == "__main__":
    sys.exit(main())
