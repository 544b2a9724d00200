"""Check that every relative link and picture in the committed Markdown files exists.

    python3 .ci/links.py

A link may end in `#heading`: the heading is then looked for in the file it names, by GitHub's
rule for anchors. Links to other sites are not followed: the check works offline.
"""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"^(?:[a-z]+:|//)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


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


def main():
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    paths = [pathlib.Path(name) for name in names.split("\0") if name]
    faults = [fault for path in paths if path.exists() for fault in broken(path)]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(paths)} Markdown files, {len(faults)} broken links")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
