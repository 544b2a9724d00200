#!/usr/bin/env python3
"""Texts whose providers are killed: each token once, the text of this machine, and how long it
stood still.

    python3 llm/bench/kills.py target/release/souk [--runs 50] [--tokens 150]

A testnet of four providers, a text over two of them, and `kill -9` of the one that sells the first
part, the last part, or both, at a random moment. One line for each run, and the sum of them all.
Takes a souk with language models.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import threading
import time

PROMPT = "A lease is"

# Of it the leases of a lost provider hold some until they end, beside those of the next session.
BUDGET = "100"


def providers(net):
    """The processes of a testnet's providers, by their names."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "provider" in words and "run" in words:
            for word in words:
                if word.startswith(f"{net}/provider-"):
                    found[pathlib.Path(word).name] = int(process.name)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("souk")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    help_ = "seconds from the plan to the kill, at most"
    parser.add_argument("--within", type=float, default=1.0, help=help_)
    asked = parser.parse_args()
    souk, dice = os.path.realpath(asked.souk), random.Random(asked.seed)

    with tempfile.TemporaryDirectory() as scratch:
        net = pathlib.Path(scratch) / "net"

        def command(*words):
            return [souk, "--dir", str(net), *words]

        def text(*more):
            return command("generate", "bundled", PROMPT, "--max-tokens", str(asked.tokens), *more)

        here = subprocess.run(text("--local"), capture_output=True, check=True).stdout
        up = command("testnet", "up", "--detach", "--validators", "1", "--no-http")
        subprocess.run(up, capture_output=True, check=True)
        try:
            stills, moved = [], 0
            for run in range(1, asked.runs + 1):
                victims = dice.choice([["1"], ["2"], ["1", "2"]])
                writing = Writing(text("--budget", BUDGET, "--min-providers", "2"))
                sellers = writing.sellers()
                time.sleep(dice.uniform(0, asked.within))
                pids = providers(net)
                killed = [sellers[part] for part in victims]
                for name in killed:
                    os.kill(pids[name], signal.SIGKILL)
                made, told, still = writing.whole()
                again = told.count("buying another")
                stills.append(still)
                moved += again > 0
                print(
                    f"{run:3}: part {' and '.join(victims)} killed, {', '.join(killed)}; bought "
                    f"again {again} times, stood still {still * 1e3:.0f} ms",
                    flush=True,
                )
                assert made == here, (made.decode(), here.decode(), told)
                wait_for(net, 4)
            stills.sort()
            print(
                f"{asked.runs} of {asked.runs} the text of this machine, {moved} went on with other "
                f"providers; stood still {stills[len(stills) // 2] * 1e3:.0f} ms at the median, "
                f"{stills[-1] * 1e3:.0f} at most"
            )
            assert moved, "no kill came in time: --within is too long"
        finally:
            subprocess.run(command("testnet", "down"), capture_output=True, check=False)


class Writing:
    """A text as it is written, with the moments at which it went on."""

    def __init__(self, command):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe)
        self.told, self.made, self.moments = [], [], []
        self.seen = threading.Event()
        self.threads = [threading.Thread(target=it) for it in (self.hear, self.read)]
        for thread in self.threads:
            thread.start()

    def hear(self):
        for line in self.process.stderr:
            self.told.append(line.decode())
            if "the text is seen by" in self.told[-1]:
                self.seen.set()
        self.seen.set()

    def read(self):
        while piece := self.process.stdout.read1():
            self.moments.append(time.monotonic())
            self.made.append(piece)

    def sellers(self):
        """Who sells which part, as the plan says before anything is written."""
        self.seen.wait(60)
        lines = re.findall(r"^ +([12])  (provider-[0-9])", "".join(self.told), re.MULTILINE)
        return dict(lines)

    def whole(self):
        """The text, what was told, and the longest it stood still."""
        for thread in self.threads:
            thread.join()
        told = "".join(self.told)
        assert self.process.wait() == 0, told
        gaps = (b - a for a, b in zip(self.moments, self.moments[1:]))
        return b"".join(self.made), told, max(gaps, default=0.0)


def wait_for(net, count):
    """Until so many providers run again."""
    end = time.monotonic() + 60
    while len(providers(net)) < count and time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
