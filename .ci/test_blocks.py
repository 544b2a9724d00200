"""Whether the blocks of a page are found, and what is not understood is said."""
import unittest

import blocks

FENCED = """# A page

<!-- sh: first digits -->
<!-- sh: LINE is $line -->
```sh
souk join LINE        # prints
souk validator run    # goes on
```

```toml
a = 1
```

```
souk book
```
"""


class Blocks(unittest.TestCase):
    def of(self, text):
        return list(blocks.blocks("page.md", text))

    def test_each_fence_is_found_with_its_line_and_what_is_said(self):
        found = self.of(FENCED)
        self.assertEqual([block.line for block in found], [5, 10, 14])
        self.assertEqual([block.language for block in found], ["sh", "toml", ""])
        self.assertEqual(found[0].said, ["first digits", "LINE is $line"])

    def test_a_fence_without_a_language_is_a_fault(self):
        self.assertEqual(
            [fault for block in self.of(FENCED) for fault in blocks.faults(block)],
            ["page.md:14: a fence of no language; say one of "
             "json, python, rust, sh, text, toml, yaml"])

    def test_errors_name_the_line_of_the_page(self):
        lines = self.of(FENCED)[0].script().split("\n")
        self.assertEqual(lines[4], "digits")
        self.assertEqual(lines[5], "souk join $line        # prints")

    def test_what_goes_on_running_is_begun(self):
        self.assertIn("\nforever souk validator run ", self.of(FENCED)[0].script())
        self.assertEqual(blocks.begun("souk validator list"), "souk validator list")
        once = "souk provider init --serve bundled"
        self.assertEqual(blocks.begun(once), once)

    def test_a_reason_may_have_lines(self):
        block, = self.of("<!-- sh: not run, it needs\na card -->\n```sh\nsouk doctor\n```\n")
        self.assertEqual(block.unrun(), "it needs\na card")
        self.assertEqual(list(blocks.faults(block)), [])

    def test_what_is_not_understood_is_a_fault(self):
        for said in ("not run", "exits soon", "ADDRESS is $address"):
            block, = self.of(f"<!-- sh: {said} -->\n```sh\nsouk doctor\n```\n")
            self.assertEqual(len(list(blocks.faults(block))), 1, said)

    def test_a_comment_elsewhere_is_of_no_block(self):
        block, = self.of("<!-- sh: exits 9 -->\n\nProse.\n\n```sh\nsouk doctor\n```\n")
        self.assertEqual(block.said, [])


if __name__ == "__main__":
    unittest.main()
