#!/usr/bin/env python3
"""Play what other systems' users reported as faults against souk, and check what comes of it.

    python3 contrib/field/check.py SOUK [CASE...]

SOUK is a binary, with `souk-lab` beside it; each CASE is a name, or what one begins with.
Prints a line for each case: ok, failed and why, or skipped and why. Ends with 1 if one failed.
Needs numpy and onnx. README.md says what each case is about.
"""
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

import graph_cases
import market_cases
import text_cases
from net import Failed, Net, Skipped

CASES = text_cases.CASES + market_cases.CASES + graph_cases.CASES


def play(souk, case):
    """What became of a case: a word, and why."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="souk-field."))
    net = Net(souk, folder)
    try:
        case(net)
        return "ok", ""
    except Skipped as skipped:
        return "skipped", str(skipped)
    except Failed as failed:
        return "failed", str(failed)
    except Exception as error:  # what the case itself did not foresee is a failure of the case
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", f"{type(error).__name__} at {place.name}:{place.lineno}: {error}"
    finally:
        net.down()
        shutil.rmtree(folder, ignore_errors=True)


def name_of(case):
    return case.__name__.replace("_", "-")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    souk, words = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    chosen = [c for c in CASES if not words or any(name_of(c).startswith(w) for w in words)]
    if not chosen:
        sys.exit("no such case; there are: " + ", ".join(map(name_of, CASES)))
    counts = {"ok": 0, "failed": 0, "skipped": 0}
    for case in chosen:
        begun = time.monotonic()
        word, why = play(souk, case)
        counts[word] += 1
        said = f"{word}: {why}" if why else word
        print(f"{time.monotonic() - begun:6.1f} s  {name_of(case)}: {said}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    sys.exit(counts["failed"] > 0)


if __name__ == "__main__":
    main()
