"""Which modules of a crate import which, read from its sources.

A module is a file; what an inline `mod` holds belongs to the file around it. Code that only tests
see is left out, and so are comments and strings. A name that a module takes from elsewhere
(`pub use child::Name`) leads to where it was taken from. A parent and its children count as one:
only imports between siblings, and between what lies below them, are told.
"""
import pathlib
import re

# What is no code: comments, then strings and characters.
COMMENT = r"//[^\n]*|/\*.*?\*/"
TEXT = r'b?r(?P<hashes>#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\n]{1,8}?|[^\\\'\n])\''
NO_CODE = re.compile(f"{COMMENT}|{TEXT}", re.S)
TEST_ITEM = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*")
USE = re.compile(r"\b(?P<reach>pub(?:\([^)]*\))?\s+)?use\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:$])(?P<path>(?:crate|super|self)(?:\s*::\s*\w+)+)")
PLACED = re.compile(r'#\[path = "(?P<file>[^"]+)"\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(?P<name>\w+);')
MODULE = re.compile(r"\bmod\s+(?P<name>(?:r#)?\w+)\s*;")


def without_tests(code):
    """`code` less the items that `#[cfg(test)]` stands before."""
    kept, at = [], 0
    for found in TEST_ITEM.finditer(code):
        if found.start() >= at:
            kept.append(code[at : found.start()])
            at = end_of_item(code, found.end())
    return "".join([*kept, code[at:]])


def end_of_item(code, at):
    """Where the item that begins at `at` ends: behind its `;`, or behind its last brace."""
    depth = 0
    for place in range(at, len(code)):
        sign = code[place]
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and (sign == ";" or (sign == "}" and not code.startswith(";", place + 1))):
            return place + 1
    return len(code)


def names_of_use(tree):
    """Each path of a `use`, with the name it is known by: (("crate", "a", "B"), "B")."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, known_as = (part.strip() for part in re.sub(r"\s+as\s+", " as ", tree).partition(" as "))
        steps = tuple(step.strip() for step in path.split("::") if step.strip())
        if steps[-1] == "self":
            steps = steps[:-1] or steps
        yield steps, known_as or steps[-1]
        return
    head = tree[:brace].strip().removesuffix("::")
    for branch in split_branches(tree[brace + 1 : tree.rindex("}")]):
        yield from names_of_use(f"{head}::{branch}" if head else branch)


def split_branches(text):
    """`a, b::{c, d}` in its two branches."""
    depth, branch = 0, ""
    for sign in text + ",":
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            if branch.strip():
                yield branch.strip()
            branch = ""
        else:
            branch += sign


class Crate:
    """The modules of one crate: what each declares, takes and names."""

    def __init__(self, sources):
        self.sources = pathlib.Path(sources)
        # module -> (known name -> path it stands for), and module -> [paths named]
        self.taken, self.named = {}, {}
        root = self.sources / "lib.rs"
        self.read((), root if root.exists() else self.sources / "main.rs")

    def read(self, module, file):
        text = file.read_text(encoding="utf-8")
        code = without_tests(NO_CODE.sub(" ", text))
        uses = [pair for use in USE.finditer(code) for pair in names_of_use(use["tree"])]
        rest = USE.sub(" ", code)
        inline = [tuple(re.split(r"\s*::\s*", found["path"])) for found in PATH.finditer(rest)]
        taken = {known_as: path for path, known_as in uses if known_as != "*"}
        self.taken.setdefault(module, {}).update(taken)
        self.named.setdefault(module, []).extend([path for path, _ in uses] + inline)
        elsewhere = {found["name"] for found in PLACED.finditer(text)}
        for found in PLACED.finditer(text):
            self.read((*module, found["name"]), file.parent / found["file"])
        for found in MODULE.finditer(code):
            if found["name"] not in elsewhere:
                name = found["name"].removeprefix("r#")
                self.read((*module, name), self.file_of((*module, name)))

    def file_of(self, module):
        flat = self.sources.joinpath(*module).with_suffix(".rs")
        return flat if flat.exists() else self.sources.joinpath(*module, "mod.rs")

    def target(self, module, path, seen=frozenset()):
        """The module that `path`, written in `module`, leads to; nothing where it leaves."""
        at, steps = module, list(path)
        if steps[0] == "crate":
            at, steps = (), steps[1:]
        elif steps[0] in ("self", "super"):
            while steps and steps[0] in ("self", "super"):
                at = at[:-1] if steps.pop(0) == "super" else at
        elif (*module, steps[0]) not in self.named:
            return None
        for place, step in enumerate(steps):
            if (*at, step) in self.named:
                at = (*at, step)
                continue
            taken = self.taken[at].get(step)
            if taken and (at, step) not in seen:
                led = self.target(at, taken, seen | {(at, step)})
                if led is not None:
                    return self.target(led, ("self", *steps[place + 1 :]), seen | {(at, step)})
            break
        return at

    def imports(self):
        """(parent, sibling, sibling it imports) -> the imports that do it, in words."""
        found = {}
        for module, paths in self.named.items():
            for path in paths:
                target = self.target(module, path)
                if target is None:
                    continue
                level = shared_steps(module, target)
                if level < min(len(module), len(target)):
                    edge = (module[:level], module[level], target[level])
                    words = f"{'/'.join(module)}.rs names {'::'.join(path)}"
                    found.setdefault(edge, {})[words] = None
        return {edge: list(words) for edge, words in sorted(found.items())}


def shared_steps(one, other):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def circles(imports):
    """(parent, siblings in a circle), each with all who are in it."""
    parents = {}
    for parent, one, other in imports:
        parents.setdefault(parent, {}).setdefault(one, set()).add(other)
    for parent, known in sorted(parents.items()):
        reached = {sibling: reachable(known, sibling) for sibling in known}
        left = {sibling for sibling in known if sibling in reached[sibling]}
        while left:
            first = min(left)
            ring = {other for other in reached[first] if first in reached.get(other, ())}
            yield parent, sorted(ring)
            left -= ring


def reachable(known, start):
    reached, left = set(), list(known[start])
    while left:
        sibling = left.pop()
        if sibling not in reached:
            reached.add(sibling)
            left += known.get(sibling, ())
    return reached


def faults_in_circles(crate, imports):
    """A line for each circle, and below it the imports that make it."""
    for parent, ring in circles(imports):
        lines = [f"{crate}: {', '.join(ring)} in {'/'.join(parent) or 'src'} import each other"]
        for edge, words in imports.items():
            if edge[0] == parent and edge[1] in ring and edge[2] in ring:
                lines.append(f"    {edge[1]} -> {edge[2]}: {'; '.join(words[:3])}")
        yield "\n".join(lines)


def faults_in_floors(crate, modules, imports, floors):
    """Top modules that stand on no floor, and imports that do not go down."""
    floor_of = {name: level for level, names in enumerate(floors) for name in names}
    for name in sorted(modules ^ floor_of.keys()):
        why = "stands on no floor" if name in modules else "is no module"
        yield f"{crate}: {name} {why} of .ci/floors.toml"
    for (parent, one, other), words in imports.items():
        if not parent and one in floor_of and other in floor_of:
            if floor_of[other] >= floor_of[one]:
                yield f"{crate}: {one} must not know {other}: {'; '.join(words[:3])}"


def faults(crate, sources, floors):
    """What is wrong with a crate's modules; `floors` may be nothing."""
    read = Crate(sources)
    imports = read.imports()
    yield from faults_in_circles(crate, imports)
    if floors is not None:
        tops = {module[0] for module in read.named if len(module) == 1}
        yield from faults_in_floors(crate, tops, imports, floors)
