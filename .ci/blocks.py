#!/usr/bin/env python3
"""Run the shell blocks of the pages, as somebody who reads them would type them.

    python3 .ci/blocks.py target/release/souk              every page
    python3 .ci/blocks.py target/release/souk PAGE ...     these
    python3 .ci/blocks.py --check                          only that each block says what it is

A fence names its language, and `sh` is a shell's. The blocks of a page run in order, in one shell,
in a fresh folder that looks like a checkout, with a home of its own, `souk` on the path, and a
network and processes of its own, which end with the page: nothing outside is reached. Lines that go
on running are put into the background, and the next line waits until they are ready. What `cargo`
would build is the binary that is given.

A comment above a fence says what a reader sees otherwise:

    <!-- sh: not run, REASON -->     it cannot run here; each is counted, and named
    <!-- sh: on NAME -->             it is typed on another machine, which has a folder of its own
    <!-- sh: first COMMANDS -->      what the reader has already, such as a model
    <!-- sh: WORD is TEXT -->        what the shell gets in a word's place, such as $line for LINE
    <!-- sh: exits CODE -->          the block ends with this code, not with 0
    <!-- sh: then COMMANDS -->       what must hold afterwards

Takes Linux, root or user namespaces, iproute2, and the commands that pages use (curl, b3sum).
"""
import dataclasses
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"((?:^<!-- sh: [^\n]*(?:\n(?!```)[^\n]*)*?-->\n+)*)^```([^\n]*)\n(.*?)^```$", re.M | re.S
)
COMMENT = re.compile(r"<!-- sh: (.*?) -->", re.S)
VERB = re.compile(r"not run, \S|on \w+$|first \S|exits \d+$|then \S")
LANGUAGES = {"sh", "text", "toml", "python", "rust", "json", "yaml"}
FOREVER = re.compile(r"^(souk\b.*\b(validator|provider) run\b|souk\b.* serve\b|curl -sN\b)")
# What a node says once it is of use, or waits for people.
READY = "^(ready|waiting)"
BLOCK_SECONDS_MAX = 180
# Addresses that documents may use, and no network has.
ADDRESSES = ("192.0.2.7/24", "192.0.2.8/24", "192.0.2.9/24")

SHELL = r"""
set -e
umask 077
ip link set lo up
for address in @addresses@; do ip addr add "$address" dev lo; done
ip route add default dev lo
work=@work@
export PATH="$work/bin:$PATH" NO_COLOR=1 PYTHONDONTWRITEBYTECODE=1
unset CARGO_TARGET_DIR SOUK_DIR SOUK_LOG XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME

# on NAME: the shell goes to that machine: its folder, as it was left, and its home.
declare -A folders
machine=
on() {
  [ -z "$machine" ] || folders[$machine]=$PWD
  machine=$1
  if [ -z "${folders[$1]:-}" ]; then
    folders[$1]=$work/$1
    mkdir -p "$work/$1" "$work/home/$1" "$work/$1/target/release"
    find @root@ -mindepth 1 -maxdepth 1 ! -name target ! -name '.git*' \
      -exec ln -s {} "$work/$1" \;
    ln -s "$work/bin/souk" "$work/$1/target/release/souk"
  fi
  export HOME=$work/home/$1
  cd "${folders[$1]}"
}

# digits: a model and an input for it, as a reader has some.
digits() {
  cp testnet/models/digits/digits.onnx model.onnx
  cp testnet/models/digits/images.npy .
}

# field NAME.NAME: that field of the JSON that comes in; of a list, the one of that number.
field() {
  python3 -c '
import json, sys
found = json.load(sys.stdin)
for name in sys.argv[1].split("."):
    found = found[int(name) if isinstance(found, list) else name]
print(found)' "$1"
}

# forever COMMAND...: begins what goes on running, and waits until it is of use. What it says is in
# the file $said.
began=0
forever() {
  local log
  began=$((began + 1))
  log=$work/forever-$began.txt
  said=$log
  : >"$log"
  "$@" >>"$log" 2>&1 &
  [ "$1" = souk ] || return 0
  until grep -qE "@ready@" "$log"; do
    if ! kill -0 $! 2>/dev/null; then
      cat "$log"
      return 1
    fi
    sleep 0.1
  done
}

# block NUMBER CODE FILE: runs one, and tells how it ended.
block() {
  local code=0
  echo "begin $1" >&3
  if [ "$2" = 0 ]; then
    source "$3"
  else
    set +e
    source "$3"
    code=$?
    set -e
    if [ "$code" != "$2" ]; then
      echo "ended with $code, not with $2"
      return 1
    fi
  fi
  echo "end $1" >&3
}
"""

CARGO = """#!/bin/sh
case "$*" in
  "build --release") test -x @souk@ ;;
  "run --release -- "*) shift 3; exec @souk@ "$@" ;;
  *) echo "cargo $*: not run here; the block must say so" >&2; exit 1 ;;
esac
"""

# People read a problem; here it ends the page.
CURL = """#!/bin/sh
PATH=${PATH#*:} exec curl --fail-with-body "$@"
"""


@dataclasses.dataclass
class Block:
    """One fence of a page."""

    page: str
    line: int
    language: str
    text: str
    said: list

    def name(self):
        return f"{self.page}:{self.line}"

    def saying(self, word):
        """What the comments above it say that begins with the word."""
        return [said[len(word):].strip() for said in self.said if said.startswith(word)]

    def unrun(self):
        """Why it does not run here, or nothing."""
        return next(iter(self.saying("not run,")), None)

    def words(self):
        """What the shell gets in the place of words."""
        others = [said for said in self.said if not VERB.match(said)]
        found = (re.match(r"(.+?) is (.+)$", said, re.S) for said in others)
        return [match.groups() for match in found if match]

    def script(self):
        """What runs, each line where it stands in the page, so that errors name it."""
        text = self.text
        for word, value in self.words():
            text = text.replace(word, value)
        lines = [begun(line) for line in text.split("\n")]
        first = [said.replace("\n", " ") for said in self.saying("first ")]
        return "\n" * (self.line - 1) + "; ".join(first) + "\n" + "\n".join(lines)


def begun(line):
    """A line of the page, or what begins it where it would go on running."""
    return f"forever {line}" if FOREVER.match(line) else line


def blocks(page, text):
    """Each fence of a page, in order."""
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        said = [one.strip() for one in COMMENT.findall(match[1])]
        yield Block(page, line, match[2].strip(), match[3], said)


def faults(block):
    """What is wrong with how one block says what it is."""
    if block.language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        yield f"{block.name()}: a fence of {block.language or 'no language'}; say one of {known}"
    if block.said and block.language != "sh":
        yield f"{block.name()}: what is no shell's block has a comment for it"
    for said in block.said:
        if not VERB.match(said) and not re.match(r".+? is \S", said):
            yield f"{block.name()}: not understood: {said}"
    for word, _ in block.words():
        if word not in block.text:
            yield f"{block.name()}: {word} is not in it"


def pages():
    """The committed pages, and those that are about to be."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in names.split("\0") if (ROOT / name).is_file())


def program(work, runs):
    """The shell's program for the blocks of one page."""
    text = SHELL
    for word, value in {
        "@addresses@": " ".join(ADDRESSES),
        "@work@": shlex.quote(str(work)),
        "@root@": shlex.quote(str(ROOT)),
        "@ready@": READY,
    }.items():
        text = text.replace(word, value)
    # A shell that sources a file names it in its errors.
    folder = work / "blocks" / runs[0].page
    folder.mkdir(parents=True)
    for number, block in enumerate(runs):
        file = folder / str(block.line)
        file.write_text(block.script())
        text += f"on {next(iter(block.saying('on ')), 'here')}\n"
        text += f"block {number} {next(iter(block.saying('exits ')), 0)} {shlex.quote(str(file))}\n"
        text += "".join(f"{said}\n" for said in block.saying("then "))
    return text + 'echo "all" >&3\n'


def run_page(souk, runs):
    """Runs the blocks of one page. What went wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix="souk-blocks.") as folder:
        work = pathlib.Path(folder).resolve()
        (work / "bin").mkdir()
        (work / "bin/souk").symlink_to(souk)
        for name, text in (("cargo", CARGO), ("curl", CURL)):
            (work / "bin" / name).write_text(text.replace("@souk@", shlex.quote(str(souk))))
            (work / "bin" / name).chmod(0o755)
        (work / "page.sh").write_text(program(work, runs))
        with open(work / "said.txt", "wb") as said:
            reached, late = followed(work, said, runs)
        if reached == "all":
            return None
        text = (work / "said.txt").read_text(errors="replace").replace(f"{work}/blocks/", "")
        logs = [f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
                for log in sorted(work.glob("forever-*.txt"))]
        why = f"not within {BLOCK_SECONDS_MAX} s" if late else "failed"
        return "\n".join([f"{reached}: {why}", text[-6000:], *logs])


def isolated():
    """What gives a page's shell a network and processes of its own."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def followed(work, said, runs):
    """Runs the program, tells how long blocks took; the last one begun, and whether it was late."""
    out, tell = os.pipe()
    line = [*isolated(), "bash", "-c", f'exec 3>&{tell} {tell}>&-; source "$0"', work / "page.sh"]
    shell = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                             pass_fds=[tell], start_new_session=True)
    os.close(tell)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(shell.pid, signal.SIGKILL))
    reached, began, late = "before its first block", time.monotonic(), False
    with os.fdopen(out) as told:
        for word in told:
            verb, _, number = word.strip().partition(" ")
            if verb == "begin":
                reached, began = runs[int(number)].name(), time.monotonic()
                signal.alarm(BLOCK_SECONDS_MAX)
            elif verb == "end":
                print(f"    {reached}: {time.monotonic() - began:.1f} s", flush=True)
            elif verb == "all":
                reached = "all"
        late = time.monotonic() - began >= BLOCK_SECONDS_MAX
    signal.alarm(0)
    shell.wait()
    return reached, late


def main():
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(__doc__)
    known = pages()
    found = [block for page in known for block in blocks(page, (ROOT / page).read_text())]
    wrong = [fault for block in found for fault in faults(block)]
    shells = [block for block in found if block.language == "sh"]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if arguments[0] == "--check":
        print(f"{len(found)} blocks, {len(shells)} of them a shell's, {len(wrong)} faults")
        sys.exit(1 if wrong else 0)
    souk, wanted = pathlib.Path(arguments[0]).resolve(), arguments[1:] or known
    if not os.access(souk, os.X_OK) or not set(wanted) <= set(known):
        sys.exit(f"{souk} is no program, or one of {', '.join(wanted)} no page")
    ran = 0
    for page in wanted:
        runs = [block for block in shells if block.page == page and not block.unrun()]
        if runs:
            print(f"{page}", flush=True)
            failed = run_page(souk, runs)
            wrong += [failed] if failed else []
            print(failed or "", end="\n" if failed else "", flush=True)
            ran += len(runs)
    marked = [block for block in shells if block.unrun() and block.page in wanted]
    for block in marked:
        print(f"    NOT RUN: {block.name()}: {' '.join(block.unrun().split())}")
    print(f"{ran} blocks run, {len(marked)} marked, {len(wrong)} faults")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
