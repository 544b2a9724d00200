"""Check that each type of a crate has a name of its own, and that this is a noun.

    python3 .ci/names.py [CRATE...]

Two things hold in the crates of CLEAN, or, for one who works a crate down, are told of those named:
1. a type name means one thing: it is defined once in the crate, tests aside. What several roles
   of NAMESPACES have alike (`job::Action`, `provider::Action`) is defined once in each, and then
   nowhere else;
2. no type is named by a bare participle (`Laid`, `Told`, `Taken`), which says what happened to a
   thing and not what it is.
"""
import pathlib
import re
import sys

import modules

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Crates in which the names hold, by folder.
CLEAN = [
    "cli",
    "consensus",
    "llm",
    "market",
    "memory",
    "node",
    "node/api",
    "node/folder",
    "node/gateway",
    "node/network",
    "node/roles",
    "node/sandbox",
    "node/testing",
    "scheduler",
    "scheduler/bench",
    "devices/bench",
    "devices/cpu",
    "devices/cuda",
    "devices/emulated",
    "devices/gpu",
    "devices/host",
    "devices/onnx",
    "devices/onnxruntime",
    "devices/reference",
    "devices/registry",
    "devices/testing",
    "devices/vocabulary",
    "devices/wasm",
    "testnet",
    "testnet/sim",
]

# Top modules that are a role or a protocol each, by crate: a name of theirs is read with theirs.
NAMESPACES = {
    "node": {"buyer", "provider", "validator"},
    "node/roles": {"job", "lease", "market", "provider", "session", "train", "validator"},
}

TYPE = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|union|trait|type)\s+(?P<name>\w+)", re.M
)
# Types that a trait names belong to it: each implementation says what they are.
OF_IMPLEMENTATION = re.compile(r"\bimpl\b[^;{]*\{|\btrait\b[^;{]*\{")

IRREGULAR = set(
    "Awoken Begun Bent Bought Broken Brought Built Caught Chosen Dealt Done Drawn Fallen Fed "
    "Felt Forgotten Found Frozen Given Gone Grown Heard Held Hidden Hung Kept Known Laid Led "
    "Left Lent Lost Made Meant Met Paid Ran Read Said Seen Sent Shown Sold Spelt Spent Spoken "
    "Stood Struck Sunk Sworn Swept Taken Taught Thought Thrown Told Torn Understood Unheard "
    "Unread Untaken Won Worn Written".split()
)
# Nouns that end as participles do, and an error, which is named after what happened.
NOUNS = set("Bed Deed Feed Need Seed Speed Unsupported".split())


def is_participle(name):
    """Whether a name of one word says what was done to something."""
    if not re.fullmatch(r"[A-Z][a-z]+", name) or name in NOUNS:
        return False
    return name in IRREGULAR or name.endswith("ed")


def types(source):
    """Names of the types that a source defines outside tests, in order."""
    code = modules.without_tests(modules.NO_CODE.sub(" ", source))
    return [found["name"] for found in TYPE.finditer(without_bodies(code))]


def without_bodies(code):
    """`code` less what stands in an `impl` or a trait."""
    kept, at = [], 0
    for found in OF_IMPLEMENTATION.finditer(code):
        if found.start() >= at:
            kept.append(code[at : found.end() - 1])
            at = modules.end_of_item(code, found.end() - 1)
    return "".join([*kept, code[at:]])


def defined(folder):
    """name -> the files that define it, each as often as it does."""
    places = {}
    for file in sorted((folder / "src").rglob("*.rs")):
        inside = file.relative_to(folder / "src")
        # What is absent on a platform has the names of what stands there on others.
        stands_in = inside.stem.endswith("absent")
        if "tests" not in inside.with_suffix("").parts and not stands_in:
            for name in types(file.read_text(encoding="utf-8")):
                places.setdefault(name, []).append(str(inside))
    return places


def means_one_thing(files, namespaces):
    """Whether what `files` define under one name is told apart by the namespaces they are in."""
    tops = [pathlib.Path(file).with_suffix("").parts[0] for file in files]
    return len(tops) == 1 or (len(set(tops)) == len(tops) and namespaces.issuperset(tops))


def faults(crate, folder):
    """What is wrong with the names of a crate's types, a line for each."""
    for name, files in sorted(defined(folder).items()):
        if not means_one_thing(files, NAMESPACES.get(crate, set())):
            yield f"{crate}: {name} is {len(files)} types: {', '.join(files)}"
        if is_participle(name):
            yield f"{crate}: {name} of {files[0]} is a participle: say what it is"


def main():
    found = []
    for crate in sys.argv[1:] or CLEAN:
        found += faults(crate, ROOT / crate)
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(sys.argv[1:] or CLEAN)} crates, {len(found)} names at fault")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
