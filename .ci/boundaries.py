"""Check that each crate knows only what docs/architecture.md lets it know.

    python3 .ci/boundaries.py

Five things hold by this script, read from Cargo's own view of the workspace and its sources:
1. a crate names no other souk crate than those listed for it, not even for its tests;
2. what must stay out of a crate is nowhere in its tree of normal and build dependencies;
3. a pure crate bans clocks, hash order and threads in its own clippy.toml and lifts none of it in
   its sources, and no crate but those in UNSAFE lifts the workspace's refusal of `unsafe`;
4. the top modules of a crate in .ci/floors.toml stand on floors, and each knows only those below;
5. no modules of one folder import each other in a circle.
"""
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import modules

ROOT = pathlib.Path(__file__).resolve().parent.parent

# crate -> the souk crates it may use.
USES = {
    "memory": set(),
    # What is said of a model, and of devices, without one that runs anything.
    "onnx": {"memory"},
    "vocabulary": {"memory", "onnx", "testing"},
    "host": {"memory", "vocabulary", "testing"},
    "reference": {"memory", "onnx", "vocabulary", "host", "testing"},
    # The backends know no other: what two of them share lies below both.
    "wasm": {"memory", "testing"},
    "cpu": {"memory", "onnx", "vocabulary", "host", "reference", "wasm", "testing"},
    "cuda": {"memory", "vocabulary", "host", "testing"},
    # The CPU and ONNX Runtime are what its tests hold results against.
    "gpu": {
        "memory", "onnx", "vocabulary", "host", "reference", "cuda", "testing",
        "cpu", "onnxruntime",
    },
    "onnxruntime": {"memory", "onnx", "vocabulary", "host", "testing", "cpu", "devices-bench"},
    "emulated": {"memory", "onnx", "vocabulary", "host", "cpu", "testing"},
    "registry": {
        "memory", "onnx", "vocabulary", "host", "cpu", "cuda", "gpu", "onnxruntime", "testing",
        "emulated",
    },
    # What tests are made with: only tests have it.
    "testing": {"memory", "onnx", "vocabulary"},
    # What measures devices stays out of them.
    "devices-bench": {
        "memory", "onnx", "vocabulary", "host", "cpu", "cuda", "gpu", "onnxruntime", "registry",
        "testing",
    },
    # Devices, and what cuts graphs, are only for its tests.
    "llm": {"memory", "onnx", "vocabulary", "cpu", "gpu", "scheduler"},
    # The devices themselves are for its tests.
    "scheduler": {"memory", "onnx", "vocabulary", "cpu", "emulated", "registry"},
    # What the scheduler is measured with stays out of it.
    "scheduler-bench": {
        "memory", "onnx", "vocabulary", "host", "cpu", "gpu", "emulated", "registry", "scheduler",
    },
    "market": set(),
    # What measures the market stays out of it.
    "market-bench": {"market"},
    # Trees without souk; its feature `market` adds notes and proofs of receipts.
    "proof": {"market"},
    "consensus": {"proof"},
    # What the roles decide; no network, scheduler or device.
    "roles": {"memory", "market", "proof", "consensus"},
    # What is shown of the market and of jobs: it converts values, and does nothing else.
    "api": {"market", "roles"},
    # The files of a node's folder: what they say of devices, and nothing that runs one.
    "folder": {"roles", "market", "onnx", "vocabulary"},
    # Peers, and what goes between them: it runs nothing. Of the machine it asks memory and times.
    "network": {"folder", "roles", "memory", "market", "host", "node-testing"},
    # Devices for sale, and the process that runs a lease on them: it knows no peer.
    "sandbox": {
        "folder", "roles", "api", "market", "memory", "scheduler", "node-testing",
        "onnx", "vocabulary", "host", "cpu", "cuda", "gpu", "onnxruntime", "emulated", "registry",
    },
    # What tests of a node's messages are made with: only tests have it.
    "node-testing": set(),
    # The shells of the three roles. What they sell on, and how they reach peers, are crates below;
    # ONNX is for its tests.
    "node": {
        "api", "folder", "network", "sandbox", "roles", "node-testing",
        "memory", "onnx", "vocabulary", "host", "registry", "scheduler", "market", "proof",
        "consensus",
    },
    # What is said over HTTP, to whom.
    "gateway": {"api", "folder", "network", "node", "vocabulary"},
    # Texts by language models: on this machine, or in sessions of a market.
    "texts": {"llm", "folder", "node", "roles", "onnx", "vocabulary", "host", "cpu", "registry"},
    # The same over HTTP, in the form of OpenAI's API.
    "openai": {"api", "texts", "gateway", "llm", "folder", "network", "node", "roles"},
    # The simulator runs what the roles decide with no node around it.
    "sim": {"market", "consensus", "memory", "roles"},
    "testnet": {"folder", "node"},
    "cli": {
        "api", "llm", "texts", "openai", "gateway", "testnet",
        "folder", "network", "sandbox", "node", "node-testing",
        "onnx", "vocabulary", "host", "cpu", "cuda", "gpu", "registry",
    },
    # What tests and measures souk stays out of what people install.
    "lab": {
        "cli", "testnet", "sim", "folder", "network", "sandbox", "node", "node-testing",
        "roles", "market", "consensus",
        "memory", "vocabulary", "host", "cpu", "registry",
        "market-bench", "scheduler-bench", "devices-bench",
    },
}

# crate -> what must be nowhere in its tree. A trailing * stands for any ending.
NEVER = {
    "memory": ["libp2p*", "tokio*"],
    "onnx": ["tokio*", "libp2p*"],
    "vocabulary": ["tokio*", "libp2p*", "rten*", "wgpu*"],
    "reference": ["libp2p*", "rten*", "wgpu*"],
    "cpu": ["libp2p*", "wgpu*", "ort"],
    "gpu": ["libp2p*", "rten*", "ort", "souk-cpu"],
    "onnxruntime": ["libp2p*", "rten*", "wgpu*", "souk-cpu"],
    "registry": ["libp2p*", "souk-market", "souk-consensus", "souk-testing"],
    "llm": ["libp2p*", "tokio*", "rten*", "wgpu*", "souk-cpu"],
    "scheduler": ["libp2p*", "souk-market", "souk-consensus", "rten*", "wgpu*", "souk-cpu"],
    "cli": [
        "souk-sim", "souk-node-testing", "souk-market-bench", "souk-scheduler-bench",
        "souk-devices-bench",
    ],
    # Keys and addresses have small crates of their own: those who need a file wait for no network.
    "folder": [
        "libp2p", "libp2p-swarm", "souk-scheduler", "souk-host", "souk-cpu", "rten*", "wgpu*",
    ],
    # It waits for no device, and none of them for it.
    "network": [
        "souk-sandbox", "souk-scheduler", "souk-registry", "souk-reference", "souk-wasm",
        "souk-cpu", "souk-cuda", "souk-gpu", "souk-onnxruntime", "souk-emulated",
        "souk-node-testing", "rten*", "wgpu*", "axum*",
    ],
    # It is built beside the network, and nothing that runs a job can name a peer.
    "sandbox": ["souk-network", "souk-node", "souk-node-testing", "libp2p", "libp2p-swarm"],
    "node": ["souk-testing", "souk-node-testing", "souk-devices-bench", "axum*", "utoipa*"],
    "market": ["tokio*", "libp2p*", "rand", "getrandom", "souk-*"],
    "proof": ["tokio*", "libp2p*", "rand", "getrandom", "raft", "souk-*"],
    "consensus": ["tokio*", "libp2p*", "souk-market", "souk-memory"],
    "api": ["tokio*", "libp2p*", "souk-scheduler", "souk-vocabulary", "souk-onnx"],
    "roles": ["tokio*", "libp2p*", "souk-scheduler", "souk-vocabulary", "souk-onnx"],
    "sim": ["tokio*", "libp2p*", "souk-node", "souk-scheduler", "souk-vocabulary"],
}

# crate -> what its clippy.toml must ban.
BANS = {
    "proof": ["HashMap", "HashSet", "Instant", "SystemTime", "spawn", "sleep"],
    "market": ["HashMap", "HashSet", "Instant", "SystemTime", "spawn", "sleep"],
    "consensus": ["HashMap", "HashSet", "Instant", "SystemTime", "spawn", "sleep"],
    "memory": ["HashMap", "HashSet", "Instant::now", "SystemTime::now", "sleep"],
    "api": ["HashMap", "HashSet", "Instant", "SystemTime", "Mutex", "spawn", "sleep"],
    "roles": ["HashMap", "HashSet", "Instant", "SystemTime", "Mutex", "spawn", "sleep"],
}

# Crates in which unsafe code may be: they call the processor, the system or a maker's library.
UNSAFE = {"host", "reference", "cpu", "cuda", "onnxruntime", "testing"}


def cargo(*arguments):
    command = ["cargo", *arguments, "--locked"]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: see above")
    return ended.stdout


def tree(crate):
    """Names of everything the crate is built from, itself left out."""
    listed = cargo("tree", "-p", f"souk-{crate}", "-e", "normal,build", "--prefix", "none")
    return {line.split()[0] for line in listed.splitlines() if line} - {f"souk-{crate}"}


def matches(pattern, name):
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def folders(packages):
    """crate -> its folder."""
    return {
        name.removeprefix("souk-"): pathlib.Path(package["manifest_path"]).parent
        for name, package in packages.items()
    }


def faults_in_uses(packages):
    for crate, allowed in USES.items():
        named = {d["name"] for d in packages[f"souk-{crate}"]["dependencies"]}
        souk = {name.removeprefix("souk-") for name in named if name.startswith("souk-")}
        for extra in sorted(souk - allowed - {crate}):
            yield f"{crate} depends on {extra}, and may use only {sorted(allowed) or 'none'}"


def faults_in_trees():
    for crate, patterns in NEVER.items():
        for name in sorted(tree(crate)):
            if any(matches(pattern, name) for pattern in patterns):
                yield f"{crate} must never know {name}: cargo tree -p souk-{crate} -i {name}"


def faults_in_bans(folder_of):
    for crate, banned in BANS.items():
        path = folder_of[crate] / "clippy.toml"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for name in banned:
            if not re.search(rf'path = "[^"]*\b{re.escape(name)}\b', text):
                yield f"{crate}/clippy.toml does not ban {name}"
        lifted = r"clippy::disallowed_\w+"
        yield from faults_in_sources(folder_of[crate], lifted, "lifts a ban of its crate")


def faults_in_unsafe(folder_of):
    for crate in USES:
        manifest = (folder_of[crate] / "Cargo.toml").read_text(encoding="utf-8")
        if not re.search(r"\[lints\]\s*workspace = true", manifest):
            yield f"{crate}/Cargo.toml does not take the workspace's lints"
        if crate not in UNSAFE:
            yield from faults_in_sources(folder_of[crate], "unsafe_code", "allows unsafe code")


def faults_in_sources(folder, lint, fault):
    """Sources outside tests that switch a lint off."""
    lifted = re.compile(rf"(?:allow|expect)\([^)]*\b{lint}")
    for source in sorted((folder / "src").rglob("*.rs")):
        if lifted.search(source.read_text(encoding="utf-8")):
            yield f"{source.relative_to(ROOT)} {fault}"


def faults_in_modules(folder_of):
    """Imports that go up, and circles of siblings, in each crate."""
    floors = tomllib.loads((ROOT / ".ci/floors.toml").read_text(encoding="utf-8"))
    for crate in sorted(floors.keys() - folder_of.keys()):
        yield f"{crate} is in .ci/floors.toml and no crate"
    for crate, folder in sorted(folder_of.items()):
        yield from modules.faults(crate, folder / "src", floors.get(crate))


def main():
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--no-deps"))
    packages = {package["name"]: package for package in metadata["packages"]}
    unknown = sorted(packages.keys() - {f"souk-{crate}" for crate in USES})
    faults = [f"{name} is not in .ci/boundaries.py: say what it may know" for name in unknown]
    faults += [*faults_in_uses(packages), *faults_in_trees()]
    if not unknown:
        folder_of = folders(packages)
        faults += [*faults_in_bans(folder_of), *faults_in_unsafe(folder_of)]
        faults += faults_in_modules(folder_of)
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(packages)} crates, {len(faults)} boundaries crossed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
