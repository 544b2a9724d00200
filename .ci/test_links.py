"""What the check of documents finds in small pages: python3 -m unittest discover .ci"""
import pathlib
import tempfile
import unittest

import links


class Documents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def page(self, text, name="page.md"):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def told(self, check, text):
        """What a check says of a page, without the page's name."""
        page = self.page(text)
        return [fault.removeprefix(str(page)) for fault in check(page)]

    def test_links_lead_to_files_and_headings(self):
        self.page("# A place\n\n## What it costs\n", "other.md")
        self.assertEqual(
            self.told(
                links.broken,
                "[a](other.md) [b](other.md#what-it-costs) [c](https://example.org/none)\n"
                "[d](gone.md) [e](other.md#what-it-gives)\n"
                "```\n[f](gone.md)\n```\n",
            ),
            [": gone.md: no such file", ": other.md#what-it-gives: no such heading"],
        )

    def test_a_merge_that_was_not_finished_is_told(self):
        marks = ["<" * 7, ">" * 7]
        text = f"a\n{marks[0]} one\nb\n{'=' * 7}\nc\n{marks[1]} other\n"
        fault = "the mark of a merge that was not finished"
        self.assertEqual(self.told(links.unmerged, text), [f":2: {fault}", f":6: {fault}"])
        self.assertEqual(self.told(links.unmerged, f"{'=' * 7}\n<<<\n"), [])

    def test_prose_has_a_hundred_columns_and_rows_a_hundred_and_forty(self):
        self.assertEqual(self.told(links.unreadable, f"{'a' * 100}\n| {'b' * 136} |\n"), [])
        self.assertEqual(
            self.told(links.unreadable, f"\n{'a' * 101}\n| {'b' * 137} |\n"),
            [":2: 101 columns, at most 100", ":3: 141 columns, at most 140"],
        )

    def test_fences_and_the_targets_of_links_may_be_long(self):
        long = "https://example.org/" + "a" * 100
        text = f"```\n{'a' * 101}\n| a | b | c | d | e | f |\n```\n[text]({long})\n<{long}>\n"
        self.assertEqual(self.told(links.unreadable, text), [])
        fault = self.told(links.unreadable, f"```\na\nb\n```\n{'a' * 101}\n")
        self.assertEqual(fault, [":5: 101 columns, at most 100"])

    def test_a_table_has_five_columns(self):
        rows = "| a | b | c | d | e |\n|---|---|---|---|---|\n| `a|b` | a\\|b | c | d | e |\n"
        self.assertEqual(self.told(links.unreadable, rows), [])
        self.assertEqual(
            self.told(links.unreadable, "| a | b | c | d | e | f |\n"),
            [":1: a table of 6 columns, at most 5"],
        )
        # An empty cell is a column too.
        self.assertEqual(
            self.told(links.unreadable, "| | b | c | d | e | |\n"),
            [":1: a table of 6 columns, at most 5"],
        )

    def test_a_page_has_three_hundred_lines(self):
        self.assertEqual(self.told(links.unreadable, "a\n" * 300), [])
        self.assertEqual(self.told(links.unreadable, "a\n" * 301), [": 301 lines, at most 300"])

    def test_no_registry_is_named(self):
        for host in links.HOSTS:
            [fault] = self.told(links.registries, f"see https://{host}/packages\n")
            self.assertIn(host, fault)
        self.assertEqual(self.told(links.registries, "the Rust package registry\n"), [])


if __name__ == "__main__":
    unittest.main()
