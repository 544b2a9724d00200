#!/usr/bin/env python3
"""Puts each planted bug of the lists into a copy of the crates, which must be noticed.

    python3 -B .ci/mutants.py [LIST ...] [-- WORD ...]     only bugs whose name holds one of the words
    python3 -B .ci/mutants.py --check                      only whether each bug fits the source

Without a list all `mutants/*.txt` of the repository are gone through. A list begins with how it
is judged: `! play` by the simulator, which must break a promise within SEEDS seeds; `! test ARGS`
by `cargo test ARGS`, which must fail. An entry is `= name`, then for each place the file below the
list's crate, `- ` lines as they are and `+ ` lines as they would be.

The copy is a workspace of its own in a temporary folder, built there or in $SOUK_MUTANTS_TARGET,
never in the ordinary target folder: cargo would take a mutant's artefacts for the crate's. Exit 1
if a bug survives, or an entry no longer fits the source."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEEDS = 200
STREAMS = "1500"
PLAYED = "souk-sim"


def read_list(path):
    """How a list is judged, and its bugs: a name and the places to change."""
    how, bugs = None, []
    for line in open(path).read().splitlines():
        if line.startswith("! "):
            how = line[2:].split()
        elif line.startswith("= "):
            bugs.append((line[2:], []))
        elif line.startswith("- "):
            bugs[-1][1][-1][1].append(line[2:])
        elif line == "+" or line.startswith("+ "):
            bugs[-1][1][-1][2].append(line[2:])
        elif line.strip() and not line.startswith("#"):
            bugs[-1][1].append((line.strip(), [], []))
    return how, bugs


def pattern(text):
    """The text however rustfmt broke its lines."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return re.compile(r"\s*".join(re.escape(token) for token in tokens))


def members(package):
    """The folders of a package and of all packages of this repository that it needs."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    packages = json.loads(subprocess.check_output(command, cwd=ROOT))["packages"]
    packages = {package["name"]: package for package in packages}
    found, open_names = {}, [package]
    while open_names:
        name = open_names.pop()
        if name in found or name not in packages:
            continue
        manifest = packages[name]["manifest_path"]
        found[name] = os.path.relpath(os.path.dirname(manifest), ROOT)
        open_names += [needed["name"] for needed in packages[name]["dependencies"]]
    return found


def copy(package, to):
    kept = members(package)
    skip = shutil.ignore_patterns("target", "fuzz", "bench", "mutants")
    for folder in kept.values():
        source, target = os.path.join(ROOT, folder), os.path.join(to, folder)
        for part in ["src", "examples", "tests", "Cargo.toml", "clippy.toml"]:
            path = os.path.join(source, part)
            if os.path.isdir(path):
                # With times of now: in a target folder that is kept, cargo would take an old time
                # for a file that has not changed since the last bug was built.
                shutil.copytree(
                    path, os.path.join(target, part), ignore=skip, copy_function=shutil.copy
                )
            elif os.path.isfile(path):
                os.makedirs(target, exist_ok=True)
                shutil.copy(path, target)
    path = re.compile(r"^(souk-[\w-]+)\s*=.*\bpath\b")
    lines = open(os.path.join(ROOT, "Cargo.toml")).read().splitlines()
    known = [it for it in lines if not path.match(it) or path.match(it).group(1) in kept]
    text = "\n".join(known) + "\n"
    start = text.index("members = [")
    end = text.index("\n[", start)
    text = text[:start] + f"members = {json.dumps(sorted(kept.values()))}\n" + text[end:]
    # Each bug is built anew: many units are built side by side.
    text = text.replace("codegen-units = 1\n", "codegen-units = 16\n")
    open(os.path.join(to, "Cargo.toml"), "w").write(text)
    shutil.copy(os.path.join(ROOT, "Cargo.lock"), to)
    # Tests compare some pages with the code.
    shutil.copytree(os.path.join(ROOT, "docs"), os.path.join(to, "docs"))


def play(folder, env):
    """Whether the simulator breaks a promise, and what it says."""
    build = ["cargo", "build", "-q", "--release", "--offline", "-p", PLAYED, "--example", "seeds"]
    built = subprocess.run(build, cwd=folder, env=env, capture_output=True, text=True)
    if built.returncode != 0:
        return None, built.stderr
    program = os.path.join(env["CARGO_TARGET_DIR"], "release", "examples", "seeds")
    run = [program, "0", str(SEEDS), "1", "find"]
    played = subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True)
    return played.returncode != 0, played.stdout.strip()


def suite(folder, env, arguments):
    """Whether the tests fail."""
    command = ["cargo", "test", "-q", "--offline", *arguments]
    run = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if "error: could not compile" in run.stderr:
        return None, run.stderr
    return run.returncode != 0, "the tests fail" if run.returncode else run.stdout[-2000:]


def changed(folder, crate, places):
    """What each file would be; a text where a place does not fit."""
    files = {}
    for path, old, new in places:
        path = os.path.normpath(os.path.join(crate, path))
        if path not in files:
            files[path] = open(os.path.join(folder, path)).read()
        found = list(pattern("\n".join(old)).finditer(files[path]))
        if len(found) != 1:
            return f"fits {len(found)} places in {path}"
        start, end = found[0].span()
        files[path] = files[path][:start] + "\n".join(new) + files[path][end:]
    return files


def judge(path, words, env):
    """How many bugs of a list there are, and how many of them survive."""
    how, bugs = read_list(path)
    bugs = [bug for bug in bugs if any(word in bug[0] for word in words)]
    crate = crate_of(path)
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        env = dict(env, SOUK_MARKET_STREAMS=STREAMS, CARGO_INCREMENTAL="0")
        env.setdefault("CARGO_TARGET_DIR", os.path.join(folder, "target"))
        copy(PLAYED if how[0] == "play" else how[how.index("-p") + 1], folder)
        run = (lambda: play(folder, env)) if how[0] == "play" else lambda: suite(folder, env, how[1:])
        if bugs:
            caught, said = run()
            if caught or caught is None:
                sys.exit(f"{crate}: fails without any bug:\n{said[-4000:]}")
        for name, places in bugs:
            files = changed(folder, crate, places)
            caught, said = None, files
            if not isinstance(files, str):
                before = {file: open(os.path.join(folder, file)).read() for file in files}
                for file, text in files.items():
                    open(os.path.join(folder, file), "w").write(text)
                caught, said = run()
                for file, text in before.items():
                    open(os.path.join(folder, file), "w").write(text)
            verdict = said if caught else "SURVIVED" if caught is False else f"UNFIT {said[-1500:]}"
            print(f"{crate}: {name}: {verdict}", flush=True)
            survived += not caught
    return len(bugs), survived


def crate_of(path):
    """The folder of the crate that a list is for."""
    return os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(path))), ROOT)


def check(lists):
    """Exits with 1 if a bug no longer fits the source, as it can after a change of names."""
    count = unfit = 0
    for path in lists:
        for name, places in read_list(path)[1]:
            count += 1
            try:
                files = changed(ROOT, crate_of(path), places)
            except FileNotFoundError as error:
                files = f"names {os.path.relpath(error.filename, ROOT)}, which is not there"
            if isinstance(files, str):
                unfit += 1
                print(f"{os.path.relpath(path, ROOT)}: {name}: {files}")
    print(f"{count} planted bugs, {unfit} no longer fit")
    sys.exit(1 if unfit else 0)


def main():
    arguments = sys.argv[1:]
    only_check = arguments == ["--check"]
    arguments = [] if only_check else arguments
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    lists, words = arguments[:cut], arguments[cut + 1 :] or [""]
    if not lists:
        found = subprocess.check_output(["git", "ls-files", "*mutants/*.txt"], cwd=ROOT, text=True)
        lists = [os.path.join(ROOT, path) for path in found.splitlines()]
    if only_check:
        check(lists)
    env = dict(os.environ)
    if "SOUK_MUTANTS_TARGET" in env:
        env["CARGO_TARGET_DIR"] = env["SOUK_MUTANTS_TARGET"]
    results = [judge(path, words, env) for path in lists]
    bugs, survived = (sum(column) for column in zip(*results))
    print(f"{bugs - survived} of {bugs} planted bugs are noticed")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
