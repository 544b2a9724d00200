"""Changes the cores line by line, and names each change that no test notices.

    python3 -B .ci/mutated.py [FILE ...]      only these files

`cargo mutants` makes the changes: of the exchange, of what roles decide and of the replica. All of
them take longer than a night, so each day has its part of them: $SOUK_MUTANTS_SHARD, such as 3/28,
else the day's; and $SOUK_MUTANTS_SECONDS is for all of it, six hours unless it is said. What was
not reached by then is counted. Exit 1 if a change survives that .ci/mutants-survivors.txt does not
know, each with the reason why it may."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = ROOT / ".ci/mutants-survivors.txt"
SHARDS = 28
SECONDS = 6 * 3600
# A change may make a test wait for ever: so many seconds for the tests of a crate.
TEST_SECONDS = 300
OUTCOMES = ("caught", "missed", "timeout", "unviable")
CORES = {
    "souk-market": ["market/src/exchange.rs", "market/src/exchange/**/*.rs"],
    "souk-roles": [
        "node/roles/src/job.rs",
        "node/roles/src/job/**/*.rs",
        "node/roles/src/provider/**/*.rs",
        "node/roles/src/session.rs",
        "node/roles/src/session/**/*.rs",
    ],
    "souk-consensus": ["consensus/src/replica.rs", "consensus/src/replica/**/*.rs"],
}


def name(line):
    """A survivor without its place in the file, which moves."""
    return re.sub(r"^(\S+?):\d+(:\d+)?: ", r"\1: ", line.strip())


def known():
    """Survivors that are known, by name; each has its reason."""
    found = {}
    for line in KNOWN.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            survivor, mark, reason = line.partition(" | ")
            if not mark or not reason.strip():
                sys.exit(f"{KNOWN.name}: no reason for: {line}")
            found[survivor.strip()] = reason.strip()
    return found


def lines(folder, outcome):
    path = folder / "mutants.out" / f"{outcome}.txt"
    return path.read_text().splitlines() if path.exists() else []


def mutate(package, files, shard, seconds, folder):
    """The outcomes of a package's changes, and how many the time did not last for."""
    command = ["cargo", "mutants", "--package", package, "--test-package", package]
    command += ["--shard", shard, "--timeout", str(TEST_SECONDS), "--output", str(folder)]
    command += ["--no-shuffle", "--colors", "never", "--gitignore", "true"]
    for file in files:
        command += ["--file", file]
    env = dict(os.environ, CARGO_INCREMENTAL="0")
    env.pop("CARGO_TARGET_DIR", None)
    if "SOUK_MUTANTS_TARGET" in env:
        env["CARGO_TARGET_DIR"] = os.path.join(env["SOUK_MUTANTS_TARGET"], package)
    run = subprocess.Popen(command, cwd=ROOT, env=env)
    try:
        # 0: all were noticed; 2: some were not; 3: some waited; else it could not begin.
        code = run.wait(timeout=max(seconds, 1))
        if code not in (0, 2, 3):
            sys.exit(f"{package}: cargo mutants failed ({code})")
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        run.wait()
    listed = folder / "mutants.out/mutants.json"
    count = len(json.loads(listed.read_text())) if listed.exists() else 0
    found = {outcome: lines(folder, outcome) for outcome in OUTCOMES}
    return found, count - sum(len(of) for of in found.values())


def main():
    begin = time.monotonic()
    budget = int(os.environ.get("SOUK_MUTANTS_SECONDS", SECONDS))
    day = int(time.time()) // 86400
    shard = os.environ.get("SOUK_MUTANTS_SHARD", f"{day % SHARDS}/{SHARDS}")
    wanted, reasons, unknown = sys.argv[1:], known(), []
    cores = {package: files for package, files in CORES.items()}
    if wanted:
        of = {"souk-market": "market/", "souk-roles": "node/roles/", "souk-consensus": "consensus/"}
        cores = {p: [f for f in wanted if f.startswith(of[p])] for p in cores}
    for package, files in cores.items():
        if not files:
            continue
        left = budget - (time.monotonic() - begin)
        with tempfile.TemporaryDirectory() as folder:
            found, left_out = mutate(package, files, shard, left, pathlib.Path(folder))
        counts = ", ".join(f"{len(of)} {outcome}" for outcome, of in found.items())
        print(f"{package}: part {shard}: {counts}, {left_out} not reached", flush=True)
        unknown += [line for line in found["missed"] if name(line) not in reasons]
    for line in unknown:
        print(f"SURVIVED {name(line)}")
    print(f"{len(unknown)} changes go unnoticed that are not known")
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()
