"""Make a book of pages that are read in the repository as well: a preprocessor of mdBook.

    mdbook build docs        calls it as docs/book.toml says

The README becomes the book's first page. Links between it and the pages are made to lead from where
both then are. What else lies outside of docs is not in the book: it keeps its words, and its path
where those say another, and is no link.
"""
import json
import os.path
import re
import sys

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"^(?:[a-z]+:|#)")
README = "../README.md"
FIRST = "index.md"
# What the book's menu shows, and is no page of it.
LIST = "SUMMARY.md"


def placed(path):
    """Where a page of docs, by its path from there, is in the book."""
    return FIRST if path == README else path


def led(source, target):
    """The target of a link in the book, or nothing where that has no such page."""
    name, hash_mark, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(source), name))
    # From the README the pages are below docs, and all else is beside it.
    path = path.replace("../docs/", "", 1) if path.startswith("../docs/") else path
    if path == LIST or path.startswith("..") and path != README:
        return None
    there = os.path.relpath(placed(path), os.path.dirname(placed(source)) or ".")
    return there + hash_mark + anchor


def inside(source, text):
    """The text of a page, its links as the book has them."""

    def link(match):
        mark, words, target = match.groups()
        if ELSEWHERE.match(target):
            return match[0]
        there = led(source, target)
        if there:
            return f"{mark}[{words}]({there})"
        path = os.path.normpath(os.path.join("docs", os.path.dirname(source), target))
        return words if path in words else f"{words} (`{path}`)"

    # A link may have code for its words, so only what is fenced is left out.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def chapters(items):
    """Each chapter, however deep."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            yield chapter
            yield from chapters(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    for chapter in chapters(book.get("items") or book.get("sections")):
        source = chapter["source_path"]
        if source:
            chapter["content"] = inside(source, chapter["content"])
            chapter["path"] = placed(source)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
