"""Compare what the operator tests of a backend found with the cases that it is known to refuse.

    souk bench conformance FOLDER --backend cpu --json | python3 .ci/conformance.py LIST [--bless]

LIST names one case a line. A wrong case fails, and so does a refused case that the list lacks: both
are named. A listed case that now passes does not fail, because the driver of a software GPU decides
about some; it is printed, so that somebody takes it off the list. `--bless` writes the list anew.
"""
import json
import pathlib
import sys


def compare(found, listed):
    """The complaints about a report, and the notices."""
    refused = found["unsupported"]
    wrong = [f"wrong: {name}: {why}" for name, why in sorted(found["wrong"].items())]
    lost = [f"refused now: {name}: {refused[name]}" for name in sorted(refused.keys() - listed)]
    seen = {*found["pass"], *found["pass_by_rounding"], *found["drawn"], *refused, *found["wrong"]}
    missing = [f"not in the report: {name}" for name in sorted(listed - seen)]
    gained = sorted((listed & seen) - refused.keys() - found["wrong"].keys())
    return wrong + lost + missing, [f"no longer refused: {name}" for name in gained]


def main(path, *options):
    path = pathlib.Path(path)
    found = json.load(sys.stdin)
    if "--bless" in options:
        path.write_text("".join(f"{name}\n" for name in sorted(found["unsupported"])))
    complaints, notices = compare(found, set(path.read_text().split()))
    counts = ", ".join(f"{len(found[kind])} {kind}" for kind in ("pass", "unsupported", "wrong"))
    print(f"    {path.stem}: {counts}")
    for line in notices + complaints:
        print(f"    {line}")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
