"""Write src/souk/_sync from src/souk/_async: the same without `async` and `await`.

    python sync.py            write it
    python sync.py --check    say whether it is what would be written

Nothing is written twice by hand, and nothing can differ.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parent / "src" / "souk" / "_async"
TARGET = SOURCE.parent / "_sync"

# Words of the one that are others in the other.
WORDS = {
    "AsyncGenerator": "Generator",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asynccontextmanager": "contextmanager",
    "_async": "_sync",
    "async_each": "each",
    "async_in_thread": "in_thread",
    "async_shielded_in_thread": "in_thread",
    "async_sleep": "sleep",
}

HEAD = "# Made by sync.py from souk/_async/{name}; not written by hand.\n"

# What there would be twice.
TWICE = [
    (re.compile(r"\bIterable\[Inputs\] \| Iterable\[Inputs\]"), "Iterable[Inputs]"),
    (re.compile(r"^(from (?:collections\.abc|\.\._twins) import )(.*)$", re.M), None),
]


def word(text: str) -> str:
    """A word without its part in asynchrony."""
    if text in WORDS:
        return WORDS[text]
    return re.sub(r"^(_?)Async(?=[A-Z])", r"\1", text)


def without(source: str) -> str:
    """The source without `async` and `await`."""
    lines = source.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (_, end) = token.start, token.end
        if token.type == tokenize.COMMENT:
            # The wheel is small, and who reads it reads where it is made from.
            edits.append((row, start, end, ""))
        if token.type != tokenize.NAME:
            continue
        if token.string in ("async", "await"):
            edits.append((row, start, end + 1, ""))
        elif (other := word(token.string)) != token.string:
            edits.append((row, start, end, other))
    for row, start, end, other in reversed(edits):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + other + line[end:]
    # A line that held a comment only is gone, and what follows a statement leaves no space.
    of_comments = {row for row, _, _, other in edits if not other and not lines[row - 1].strip()}
    kept = [line for row, line in enumerate(lines, 1) if row not in of_comments]
    return tidied("".join(line.rstrip() + "\n" for line in kept))


def tidied(code: str) -> str:
    """The code without what is there twice now."""
    for pattern, instead in TWICE:
        if instead is not None:
            code = pattern.sub(instead, code)
            continue
        code = pattern.sub(lambda m: m[1] + ", ".join(sorted(set(m[2].split(", ")))), code)
    code = code.replace("`async` and `await`", "plain calls")
    return code.replace("by `await` it looks up", "by a call it looks up")


def main() -> int:
    """Write the files, or compare them."""
    made = {
        path.name: HEAD.format(name=path.name) + without(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.glob("*.py"))
    }
    if "--check" in sys.argv:
        there = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py")}
        other = sorted(name for name in made | there if made.get(name) != there.get(name))
        if other:
            print(f"{TARGET} differs in {', '.join(other)}: run python sync.py", file=sys.stderr)
        return 1 if other else 0
    TARGET.mkdir(exist_ok=True)
    for path in TARGET.glob("*.py"):
        path.unlink()
    for name, code in made.items():
        (TARGET / name).write_text(code, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
