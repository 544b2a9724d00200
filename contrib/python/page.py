"""Run every block of code of a page: those for Python in one Python, the others in a shell.

    python page.py PAGE

In the folder in which it is called. The first block that fails ends the run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Run the blocks in their order."""
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(2))
        print(f"--- {page.name}, line {line + 1}", flush=True)
        if block[1] == "python":
            # Errors name the page and the line in it.
            code = compile("\n" * line + block[2], str(page), "exec")
            exec(code, names)  # noqa: S102 (that is what it is for)
        elif block[1] == "sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block[2]], check=True)  # noqa: S607
        else:
            print(f"{page}: a block of {block[1]} cannot be run", file=sys.stderr)
            return 1
        count += 1
    print(f"{count} blocks of {page.name} ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
