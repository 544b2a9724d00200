#!/usr/bin/env python3
"""Several texts at once over one session: tokens a second of all of them, by providers and texts.

    python3 llm/bench/sequences.py target/release/souk MODEL [--tokens 64] [--json FILE]

The market is a testnet on this machine, of two providers of one thread each. A server of
`souk openai` is asked for so many texts at once; what it takes to buy the session and to read the
prompts is left out by a question before, and by counting from each text's first token.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import loopback

# Providers, and texts at once.
CASES = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 3), (2, 4), (2, 8)]
PROMPT = "A lease is time that was bought"


def ask(url, key, number, tokens, temperature, moments):
    """One streamed text; keeps when each piece came."""
    asked = {"model": None, "prompt": PROMPT, "max_tokens": tokens, "temperature": temperature,
             "seed": number, "stream": True}
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/models", headers=head)) as told:
        asked["model"] = json.load(told)["data"][0]["id"]
    body = json.dumps(asked).encode()
    request = urllib.request.Request(f"{url}/completions", data=body, headers=head)
    with urllib.request.urlopen(request, timeout=600) as stream:
        for line in stream:
            if line.startswith(b"data: {"):
                moments.append(time.monotonic())


def rates(url, key, texts, tokens, temperature):
    """Asks for the texts at once; tokens a second of each."""
    ask(url, key, 0, 8, temperature, [])
    moments = [[] for _ in range(texts)]
    asking = [threading.Thread(target=ask, args=(url, key, number, tokens, temperature, kept))
              for number, kept in enumerate(moments, 1)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    begin, end = max(it[0] for it in moments), min(it[-1] for it in moments)
    return [sum(begin <= at <= end for at in kept) / (end - begin) for kept in moments]


def serve(testnet, model, providers, texts, tokens, temperature):
    """Tokens a second of each of so many texts, with so many providers."""
    words = ["openai", model, "--listen", "127.0.0.1:0", "--budget", "30"]
    words += ["--sequences", str(texts), "--session", str((tokens + 40) * (texts + 1))]
    words += ["--min-providers", str(providers), "--max-providers", str(providers)]
    words += ["--context", str(tokens + 40), "--wait", "30"]
    told = (testnet.work / "openai.log").open("wb")
    server = subprocess.Popen([*testnet.net, *words], stdout=subprocess.PIPE, stderr=told,
                              text=True)
    try:
        ready = next((line for line in server.stdout if line.startswith("ready ")), None)
        assert ready, (testnet.work / "openai.log").read_text()
        key = (testnet.work / "net/buyer/openai-key").read_text().strip()
        return rates(ready.split()[1], key, texts, tokens, temperature)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("souk")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--json", type=pathlib.Path)
    asked = parser.parse_args()
    model = asked.model if asked.model == "bundled" else os.path.realpath(asked.model)
    kept = {}
    with tempfile.TemporaryDirectory() as work:
        testnet = loopback.Testnet(os.path.realpath(asked.souk), pathlib.Path(work))
        try:
            for turn in range(asked.rounds):
                for case in CASES:
                    told = serve(testnet, model, *case, asked.tokens, asked.temperature)
                    kept.setdefault(case, []).append(told)
                    one = sum(kept[1, 1][turn])
                    print(f"{case[0]} provider(s), {case[1]} text(s): {sum(told):7.1f} tokens a "
                          f"second, {sum(told) / one:.2f} times one's; a text "
                          f"{min(told):.1f} to {max(told):.1f}", flush=True)
        finally:
            testnet.run("testnet", "down")
    if asked.json:
        asked.json.write_text(json.dumps([[*case, told] for case, told in kept.items()]))


if __name__ == "__main__":
    main()
