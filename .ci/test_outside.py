"""Whether links of the pages lead on where the pages are a book."""
import unittest

from outside import inside


class Outside(unittest.TestCase):
    def test_pages_lead_to_pages(self):
        self.assertEqual(inside("cli.md", "[a](api.md#b)"), "[a](api.md#b)")
        self.assertEqual(inside("decisions/0001.md", "[a](../api.md)"), "[a](../api.md)")

    def test_the_readme_is_the_first_page(self):
        self.assertEqual(inside("cli.md", "[a](../README.md)"), "[a](index.md)")
        self.assertEqual(inside("decisions/0001.md", "[a](../../README.md)"), "[a](../index.md)")
        self.assertEqual(inside("../README.md", "[a](docs/api.md#b)"), "[a](api.md#b)")
        self.assertEqual(inside("../README.md", "![a](docs/souk.svg)"), "![a](souk.svg)")

    def test_what_lies_outside_is_named(self):
        self.assertEqual(inside("cli.md", "[`x.rs`](../market/src/x.rs)"),
                         "`x.rs` (`market/src/x.rs`)")
        self.assertEqual(inside("cli.md", "[`market/x.rs`](../market/x.rs)"), "`market/x.rs`")
        self.assertEqual(inside("../README.md", "[it](CHANGELOG.md)"), "it (`CHANGELOG.md`)")
        self.assertEqual(inside("cli.md", "[all](SUMMARY.md)"), "all (`docs/SUMMARY.md`)")

    def test_other_sites_headings_and_fences_stay(self):
        for text in ("[a](https://b.example/c)", "[a](#b)", "```sh\n[a](../b)\n```"):
            self.assertEqual(inside("cli.md", text), text)


if __name__ == "__main__":
    unittest.main()
