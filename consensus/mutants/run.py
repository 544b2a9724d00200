#!/usr/bin/env python3
"""Puts each seeded bug of list.txt into a copy of the crate and plays the simulator with it, which
must break a promise within SEEDS seeds.

    python3 consensus/mutants/run.py [WORD ...]     only those whose name holds one of the words

The copy is a workspace of its own in a temporary folder, built there or in $SOUK_MUTANTS_TARGET,
never in the ordinary target folder: cargo would take a mutant's artefacts for the crate's. Exit 1
if a bug survives or an entry no longer fits the source."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CRATE = os.path.dirname(HERE)
ROOT = os.path.dirname(CRATE)
SEEDS = 200


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


def members():
    """The folders of the simulator and of all crates of this repository below it."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    packages = json.loads(subprocess.check_output(command, cwd=ROOT))["packages"]
    packages = {package["name"]: package for package in packages}
    found, open_names = {}, ["souk-sim"]
    while open_names:
        name = open_names.pop()
        if name in found or name not in packages:
            continue
        package = packages[name]
        found[name] = os.path.relpath(os.path.dirname(package["manifest_path"]), ROOT)
        open_names += [needed["name"] for needed in package["dependencies"]]
    return found


def copy(to):
    kept = members()
    skip = shutil.ignore_patterns("target", "fuzz", "bench", "mutants")
    for folder in kept.values():
        source, target = os.path.join(ROOT, folder), os.path.join(to, folder)
        for part in ["src", "examples", "tests", "Cargo.toml", "clippy.toml"]:
            path = os.path.join(source, part)
            if os.path.isdir(path):
                shutil.copytree(path, os.path.join(target, part), ignore=skip)
            elif os.path.isfile(path):
                os.makedirs(target, exist_ok=True)
                shutil.copy(path, target)
    path = re.compile(r'^(souk-[\w-]+)\s*=.*\bpath\b')
    lines = open(os.path.join(ROOT, "Cargo.toml")).read().splitlines()
    known = [it for it in lines if not path.match(it) or path.match(it).group(1) in kept]
    text = "\n".join(known) + "\n"
    start = text.index("members = [")
    end = text.index("\n[", start)
    text = text[:start] + f"members = {json.dumps(sorted(kept.values()))}\n" + text[end:]
    open(os.path.join(to, "Cargo.toml"), "w").write(text)
    shutil.copy(os.path.join(ROOT, "Cargo.lock"), to)


def play(folder, target):
    build = ["cargo", "build", "-q", "--release", "--offline", "-p", "souk-sim", "--example", "seeds"]
    env = dict(os.environ, CARGO_TARGET_DIR=target)
    built = subprocess.run(build, cwd=folder, env=env, capture_output=True, text=True)
    if built.returncode != 0:
        return None, built.stderr
    program = os.path.join(target, "release", "examples", "seeds")
    run = [program, "0", str(SEEDS), "1", "find"]
    played = subprocess.run(run, cwd=folder, capture_output=True, text=True)
    return played.returncode != 0, played.stdout.strip()


def main():
    words = sys.argv[1:] or [""]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        target = os.environ.get("SOUK_MUTANTS_TARGET", os.path.join(folder, "target"))
        copy(folder)
        for name, path, old, new in entries():
            if not any(word in name for word in words):
                continue
            place = os.path.join(folder, "consensus", path)
            source = open(place).read()
            found = list(pattern(old).finditer(source))
            if len(found) != 1:
                print(f"{name}: fits {len(found)} places in {path}", flush=True)
                survived += 1
                continue
            start, end = found[0].span()
            open(place, "w").write(source[:start] + new + source[end:])
            caught, said = play(folder, target)
            open(place, "w").write(source)
            if caught is None:
                print(f"{name}: does not build\n{said[-1500:]}", flush=True)
            else:
                print(f"{name}: {said if caught else 'SURVIVED'}", flush=True)
            survived += not caught
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
