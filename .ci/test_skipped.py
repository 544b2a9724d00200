"""What is made of tests that did not run: python3 -m unittest discover .ci"""
import unittest

import skipped

SAID = """\
running 3 tests
test tests::a ... ok
test tests::b ... ok
test tests::c ... ok
test tests::d ... ignored, long: .ci/long runs it

successes:

---- tests::a stdout ----
SKIPPED: no GPU adapter

---- tests::b stdout ----
it took 3 ms

---- tests::c stdout ----
SKIPPED: no GPU adapter
SKIPPED: no compiler


successes:
    tests::a
    tests::b
    tests::c

test result: ok. 3 passed; 0 failed
"""

FAILED = """\
successes:

---- tests::a stdout ----
SKIPPED: no library


successes:
    tests::a

failures:

---- tests::b stdout ----
SKIPPED: said by one that failed

failures:
    tests::b

test result: FAILED. 1 passed; 1 failed
"""


class Skipped(unittest.TestCase):
    def of(self, text):
        """What is passed on of a text, what is skipped by it, and what is ignored."""
        found, ignored = {}, {}
        lines = list(skipped.passed_on(text.splitlines(keepends=True), found, ignored))
        return "".join(lines), found, ignored

    def test_what_did_not_run_is_counted_once_a_test_and_told_by_reason(self):
        _, found, _ = self.of(SAID)
        lines, count = skipped.told(found, {})
        self.assertEqual(count, 2)
        self.assertEqual(lines[0], "    SKIPPED: no GPU adapter: tests::a, tests::c")
        self.assertEqual(lines[1], "    SKIPPED: no compiler: tests::c")

    def test_what_passed_tests_printed_is_left_out_and_all_else_stays(self):
        passed_on, _, _ = self.of(SAID)
        self.assertNotIn("it took", passed_on)
        self.assertIn("test tests::b ... ok", passed_on)
        self.assertIn("test result: ok. 3 passed", passed_on)

    def test_what_failed_is_shown_and_not_skipped(self):
        passed_on, found, _ = self.of(FAILED)
        self.assertIn("said by one that failed", passed_on)
        self.assertEqual(found, {"no library": ["tests::a"]})

    def test_ignored_tests_are_counted_by_reason(self):
        passed_on, found, ignored = self.of(SAID)
        self.assertNotIn("tests::d", passed_on)
        self.assertEqual(ignored, {"long: .ci/long runs it": 1})
        lines, count = skipped.told(found, ignored)
        self.assertEqual(count, 3)
        self.assertEqual(lines[-1], "    IGNORED: 1 tests: long: .ci/long runs it")

    def test_nothing_is_said_where_all_ran(self):
        self.assertEqual(skipped.told({}, {}), ([], 0))


if __name__ == "__main__":
    unittest.main()
