#!/usr/bin/env python3
"""Puts each seeded bug of list.txt into a copy of the crate and runs the suite, which must fail.

    python3 market/mutants/run.py [WORD ...]     only those whose name holds one of the words

The copy is a workspace of its own in a temporary folder, built there or in $SOUK_MUTANTS_TARGET,
never in the ordinary target folder: cargo would take a mutant's artefacts for the crate's. Exit 1
if a bug survives or an entry no longer fits the source."""

import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CRATE = os.path.dirname(HERE)
ROOT = os.path.dirname(CRATE)
STREAMS = "1500"


def entries():
    name, path, old, new = None, None, [], []
    for line in open(os.path.join(HERE, "list.txt")).read().splitlines() + ["= end"]:
        if line.startswith("= "):
            if name:
                yield name, path, "\n".join(old), "\n".join(new)
            name, path, old, new = line[2:], None, [], []
        elif line.startswith("- "):
            old.append(line[2:])
        elif line.startswith("+ "):
            new.append(line[2:])
        elif line.strip() and not line.startswith("#"):
            path = line.strip()


def pattern(text):
    """The text however rustfmt broke its lines."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return re.compile(r"\s*".join(re.escape(token) for token in tokens))


def copy(to):
    skip = shutil.ignore_patterns("target", "fuzz", "bench")
    shutil.copytree(CRATE, os.path.join(to, "market"), ignore=skip, copy_function=shutil.copy)
    manifest = open(os.path.join(ROOT, "Cargo.toml")).read().splitlines()
    keep = [line for line in manifest if not (line.startswith("souk-") and "path" in line)]
    text = "\n".join(keep) + "\n"
    start = text.index("members = [")
    end = text.index("\n[", start)
    text = text[:start] + 'members = ["market"]\n' + text[end:]
    open(os.path.join(to, "Cargo.toml"), "w").write(text)
    shutil.copy(os.path.join(ROOT, "Cargo.lock"), to)


def suite(folder):
    env = dict(os.environ, SOUK_MARKET_STREAMS=STREAMS)
    command = ["cargo", "test", "-q", "-p", "souk-market", "--lib", "--test", "market"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def main():
    words = sys.argv[1:] or [""]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy(folder)
        target = os.environ.get("SOUK_MUTANTS_TARGET", os.path.join(folder, "target"))
        os.environ["CARGO_TARGET_DIR"] = target
        clean = suite(folder)
        if clean.returncode != 0:
            sys.exit("the suite fails without any bug:\n" + clean.stdout[-4000:])
        for name, path, old, new in entries():
            if not any(word in name for word in words):
                continue
            file = os.path.join(folder, "market", path)
            text = open(file).read()
            fits = pattern(old).search(text)
            if not fits:
                print(f"STALE     {name}: not found in {path}")
                survived += 1
                continue
            open(file, "w").write(text[: fits.start()] + new + text[fits.end() :])
            run = suite(folder)
            open(file, "w").write(text)
            built = "error: could not compile" not in run.stderr
            caught = built and run.returncode != 0
            verdict = "caught" if caught else "SURVIVED" if built else "NO BUILD"
            print(f"{verdict:9} {name}", flush=True)
            if not built:
                print(run.stderr[-1500:])
            survived += not caught
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
