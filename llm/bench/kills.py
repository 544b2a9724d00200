#!/usr/bin/env python3
"""Texts whose providers are killed: each token once, the text of this machine, and how long it
stood still.

    python3 llm/bench/kills.py target/release/souk [--runs 50] [--tokens 150]

A testnet of four providers, a text over two of them, and `kill -9` of the one that sells the first
part, the last part, or both, at a random moment. One line for each run, and the sum of them all.
Takes a souk with language models.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time

PROMPT = "A lease is"


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
    asked = parser.parse_args()
    souk, dice = os.path.realpath(asked.souk), random.Random(asked.seed)

    with tempfile.TemporaryDirectory() as scratch:
        net = pathlib.Path(scratch) / "net"

        def command(*words):
            return [souk, "--dir", str(net), *words]

        def text(*more):
            words = ["generate", "bundled", PROMPT, "--max", str(asked.tokens), *more]
            return command("--json", *words)

        here = json.loads(subprocess.run(text("--here"), capture_output=True, check=True).stdout)
        up = command("testnet", "up", "--detach", "--validators", "1", "--no-http")
        subprocess.run(up, capture_output=True, check=True)
        try:
            longest, moved, alike = [], 0, 0
            for run in range(asked.runs):
                begin = time.monotonic()
                told = pathlib.Path(scratch) / "told"
                with told.open("wb") as err:
                    writing = subprocess.Popen(
                        text("--budget", "20", "--min-providers", "2"),
                        stdout=subprocess.PIPE, stderr=err,
                    )
                victims = dice.choice([["first"], ["last"], ["first", "last"]])
                time.sleep(dice.uniform(0.1, 1.2))
                before = providers(net)
                # Who sells which part is in the providers' own logs: those with a job's process.
                selling = sorted(name for name, pid in before.items() if children(pid))
                chosen = {"first": selling[:1], "last": selling[-1:]}
                killed = sorted({name for victim in victims for name in chosen[victim]})
                for name in killed:
                    os.kill(before[name], signal.SIGKILL)
                out, _ = writing.communicate(timeout=300)
                said = told.read_text()
                made = json.loads(out)
                assert "error" not in made, (made, said)
                same = made["tokens"] == here["tokens"] and made["text"] == here["text"]
                again = len(re.findall("buying another", said))
                gap = made["milliseconds_between_tokens"]["most"]
                longest.append(gap)
                moved += again > 0
                alike += same
                print(
                    f"{run + 1:3}: killed {', '.join(killed) or 'nobody'}; {len(made['tokens'])} tokens,"
                    f" {'the same text' if same else 'ANOTHER TEXT'}, bought again {again} times,"
                    f" stood still {gap:.0f} ms, {time.monotonic() - begin:.1f} s",
                    flush=True,
                )
                assert same, (made["text"], here["text"])
                wait_for(net, 4)
            longest.sort()
            print(
                f"{alike} of {asked.runs} the same text, {moved} went on with other providers; "
                f"stood still {longest[len(longest) // 2]:.0f} ms at the median, {longest[-1]:.0f} at most"
            )
        finally:
            subprocess.run(command("testnet", "down"), capture_output=True, check=False)


def children(pid):
    """The processes that one has begun."""
    try:
        tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
        return [child for task in tasks for child in task.read_text().split()]
    except OSError:
        return []


def wait_for(net, count):
    """Until so many providers run again."""
    end = time.monotonic() + 60
    while len(providers(net)) < count and time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
