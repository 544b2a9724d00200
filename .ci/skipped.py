"""Pass on what tests say, less what those that passed printed, and count those that did not run.

    cargo test ... -- --show-output 2>&1 | python3 .ci/skipped.py COUNT

A test that lacks a library or a device says `SKIPPED: why` and passes, since cargo has no word for
it. Here each is named, reason by reason. Ignored tests are counted, reason by reason. The number of
both is written to the file COUNT.
"""
import pathlib
import re
import sys

OUTPUT_OF = re.compile(r"^---- (?P<test>\S+)(?: - .*)? stdout ----$")
IGNORED = re.compile(r"^test \S+ \.\.\. ignored(?:, (?P<why>.+))?$")
SAID = "SKIPPED: "


def passed_on(lines, skipped, ignored):
    """Each line that is not what a passed test printed; `skipped` gets why -> tests, `ignored` why ->
    number of tests."""
    test, inside = None, False
    for line in lines:
        text = line.rstrip("\n")
        if text == "successes:":
            inside = True
        elif inside and (text == "failures:" or text.startswith("test result: ")):
            test, inside = None, False
        if found := IGNORED.match(text):
            why = found["why"] or "no reason given"
            ignored[why] = ignored.get(why, 0) + 1
        elif not inside:
            yield line
        elif found := OUTPUT_OF.match(text):
            test = found["test"]
        elif test and text.startswith(SAID):
            skipped.setdefault(text.removeprefix(SAID), []).append(test)


def told(skipped, ignored):
    """A line for each reason, and the number of tests."""
    tests = set().union(*skipped.values())
    lines = [
        f"    SKIPPED: {why}: {', '.join(sorted(set(named)))}"
        for why, named in sorted(skipped.items())
    ]
    if tests:
        lines.append(f"    {len(tests)} tests passed without having run, or without a part of it")
    lines += [f"    IGNORED: {count} tests: {why}" for why, count in sorted(ignored.items())]
    return lines, len(tests) + sum(ignored.values())


def main():
    skipped, ignored = {}, {}
    for line in passed_on(sys.stdin, skipped, ignored):
        print(line, end="", flush=True)
    lines, count = told(skipped, ignored)
    print(*lines, sep="\n", end="\n" if lines else "")
    pathlib.Path(sys.argv[1]).write_text(str(count), encoding="utf-8")


if __name__ == "__main__":
    main()
