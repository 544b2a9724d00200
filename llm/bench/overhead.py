#!/usr/bin/env python3
"""What a market adds to a token: times between tokens of a text in one, beside those of a text on
this machine.

    python3 llm/bench/overhead.py target/release/souk [MODEL] [--tokens 400] [--rounds 5]

The market is a testnet on this machine, of two providers of one thread each, and the text is made
by one thread without it as well. Each round makes all three texts, which are the same. Providers
go ahead of the buyer, so tokens come in bursts: beside the times between them the mean of all is
told, the time from the first token to the last.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import loopback

PROMPT = "A lease is"
WAYS = {
    "here": ["--local", "--threads", "1"],
    "one provider": ["--budget", "30", "--min-providers", "1", "--max-providers", "1"],
    "two providers": ["--budget", "30", "--min-providers", "2", "--max-providers", "2"],
}


def text(testnet, model, way, tokens):
    words = ["--json", "generate", model, PROMPT, "--max-tokens", str(tokens), *WAYS[way]]
    done = subprocess.run([*testnet.net, *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("souk")
    parser.add_argument("model", nargs="?", default="bundled")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    asked = parser.parse_args()
    model = asked.model if asked.model == "bundled" else os.path.realpath(asked.model)
    kept = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as work:
        testnet = loopback.Testnet(os.path.realpath(asked.souk), pathlib.Path(work))
        try:
            for _ in range(asked.rounds):
                made = {way: text(testnet, model, way, asked.tokens) for way in WAYS}
                assert len({it["text"] for it in made.values()}) == 1, "it is one text"
                for way, it in made.items():
                    gaps = it["milliseconds_between_tokens"]
                    rate = it["tokens_per_second"]
                    kept[way].append([1000 / rate, gaps["p50"], gaps["p99"],
                                      1000 * it["seconds_to_first_token"]])
        finally:
            testnet.run("testnet", "down")
    here = None
    for way, rounds in kept.items():
        mean, half, most, first = (statistics.median(it) for it in zip(*rounds))
        here = here or (mean, half, most)
        more = [it - own for it, own in zip((mean, half, most), here)]
        print(f"{way:14} {mean:6.2f} ms a token, p50 {half:6.2f}, p99 {most:6.2f}, first after "
              f"{first:.0f} ms; beyond this machine {more[0]:.2f}, {more[1]:.2f}, {more[2]:.2f}")
    if asked.json:
        asked.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
