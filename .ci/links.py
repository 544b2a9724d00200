"""Check the committed Markdown files: that links lead somewhere, and that pages can be read.

    python3 .ci/links.py

1. Each relative link and picture exists. A link may end in `#heading`: the heading is then looked
   for in the file it names, by GitHub's rule for anchors. Links to other sites are not followed:
   the check works offline.
2. Prose has at most 100 columns, a row of a table 140; the target of a link does not count, and
   what stands in a fence or a comment may be as long as it likes.
3. A table has at most five columns, a page at most 300 lines; a changelog grows.
4. No file has the marks of a merge that was not finished.
5. No page, and no script beside it, names the host of a package registry: a package is linked to
   where its source is.
"""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"^(?:[a-z]+:|//)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TARGET = re.compile(r"\]\([^)\s]+\)|<?https?://[^\s>)]+>?")
# A bar that is written \| or stands in `code` parts no columns.
NO_BAR = re.compile(r"`[^`]*`|\\\|")

PROSE_COLUMNS_MAX = 100
ROW_COLUMNS_MAX = 140
TABLE_COLUMNS_MAX = 5
PAGE_LINES_MAX = 300

# Put together here, so that this file has none.
MERGE_MARKS = tuple(mark * 7 + " " for mark in "<>")
# Put together here, so that this file names none.
HOSTS = [".".join(parts) for parts in (("crates", "io"), ("pypi", "org"), ("npmjs", "com"))]
PAGES_AND_SCRIPTS = {".md", ".py", ".sh"}


def anchors(path):
    """The anchors of a Markdown file's headings."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+\s+(.*)$", text, re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in kept}


def broken(path):
    """Each link of one file that leads nowhere, with the reason."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target = match.group(1) or match.group(2)
        if ELSEWHERE.match(target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name) if name else path
        if not place.exists():
            yield f"{path}: {target}: no such file"
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            yield f"{path}: {target}: no such heading"


def unreadable(path):
    """Each line of one page that is too long or too wide, and the page itself if it is."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > PAGE_LINES_MAX and path.name != "CHANGELOG.md":
        yield f"{path}: {lines} lines, at most {PAGE_LINES_MAX}"
    # An empty line for each of a fence's keeps the numbers of those after it.
    prose = text
    for unread in (FENCE, COMMENT):
        prose = unread.sub(lambda found: "\n" * found.group().count("\n"), prose)
    for number, line in enumerate(prose.split("\n"), 1):
        is_row = line.startswith("|")
        columns = len(TARGET.sub("]", line))
        columns_max = ROW_COLUMNS_MAX if is_row else PROSE_COLUMNS_MAX
        if columns > columns_max:
            yield f"{path}:{number}: {columns} columns, at most {columns_max}"
        cells = NO_BAR.sub("", line).rstrip().removeprefix("|").removesuffix("|").count("|") + 1
        if is_row and cells > TABLE_COLUMNS_MAX:
            yield f"{path}:{number}: a table of {cells} columns, at most {TABLE_COLUMNS_MAX}"


def registries(path):
    """The hosts of package registries that one page or script names."""
    text = path.read_text(encoding="utf-8").lower()
    for host in HOSTS:
        if host in text:
            yield f"{path}: names {host}; link a package to its source, say the registry in words"


def unmerged(path):
    """Each line of a file that git leaves where a merge was not finished."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(lines, 1):
        if line.startswith(MERGE_MARKS):
            yield f"{path}:{number}: the mark of a merge that was not finished"


def is_script(path):
    """Whether a file without an ending of its own begins as a script does."""
    with path.open("rb") as file:
        return not path.suffix and file.read(2) == b"#!"


def main():
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    paths = [path for path in map(pathlib.Path, names.split("\0")) if path.is_file()]
    pages = [path for path in paths if path.suffix == ".md"]
    faults = [fault for page in pages for check in (broken, unreadable) for fault in check(page)]
    for path in paths:
        faults += unmerged(path)
        if path.suffix in PAGES_AND_SCRIPTS or is_script(path):
            faults += registries(path)
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(pages)} Markdown files, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
