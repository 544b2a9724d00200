import unittest

import conformance


def report(**kinds):
    empty = {"pass": [], "pass_by_rounding": [], "drawn": [], "unsupported": {}, "wrong": {}}
    return empty | kinds


class Compared(unittest.TestCase):
    def test_a_known_refusal_is_neither_a_complaint_nor_a_notice(self):
        found = report(**{"pass": ["add"], "unsupported": {"loop": "no such operator"}})
        self.assertEqual(conformance.compare(found, {"loop"}), ([], []))

    def test_a_new_refusal_is_named_with_its_reason(self):
        complaints, _ = conformance.compare(report(unsupported={"add": "no kernel"}), set())
        self.assertEqual(complaints, ["refused now: add: no kernel"])

    def test_a_wrong_case_is_a_complaint_even_if_it_is_listed(self):
        complaints, notices = conformance.compare(report(wrong={"add": "1 for 2"}), {"add"})
        self.assertEqual((complaints, notices), (["wrong: add: 1 for 2"], []))

    def test_a_listed_case_that_did_not_run_is_a_complaint(self):
        complaints, _ = conformance.compare(report(), {"loop"})
        self.assertEqual(complaints, ["not in the report: loop"])

    def test_a_listed_case_that_passes_is_a_notice(self):
        _, notices = conformance.compare(report(**{"pass": ["loop"]}), {"loop"})
        self.assertEqual(notices, ["no longer refused: loop"])


if __name__ == "__main__":
    unittest.main()
