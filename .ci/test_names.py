"""What the check of names finds in a small crate: python3 -m unittest discover .ci"""
import pathlib
import tempfile
import unittest
from unittest import mock

import names


class Names(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def faults(self, **files):
        """What is wrong with a crate of these files; `a__b` is the file a/b.rs."""
        for name, text in files.items():
            file = self.folder.joinpath("src", *name.split("__")).with_suffix(".rs")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return list(names.faults("it", self.folder))

    def test_nouns_each_defined_once_are_no_fault(self):
        text = "pub struct Plan; enum Seed { A } type Cut = u8; trait KeptContent {}"
        self.assertEqual(self.faults(lib=text), [])

    def test_a_name_that_two_modules_define_is_named_with_both(self):
        self.assertEqual(
            self.faults(a="struct Plan;", b__c="pub(super) enum Plan {}"),
            ["it: Plan is 2 types: a.rs, b/c.rs"],
        )

    def test_a_name_may_stand_once_in_each_namespace(self):
        with mock.patch.dict(names.NAMESPACES, {"it": {"job", "provider"}}):
            files = {"job__action": "enum Action {}", "provider": "enum Action {}"}
            self.assertEqual(self.faults(**files), [])
            twice = "it: Action is 3 types: job/action.rs, job/event.rs, provider.rs"
            self.assertEqual(self.faults(**files, job__event="enum Action {}"), [twice])

    def test_a_name_of_a_namespace_stands_nowhere_outside(self):
        with mock.patch.dict(names.NAMESPACES, {"it": {"job"}}):
            self.assertEqual(
                self.faults(job="enum Action {}", clock="enum Action {}"),
                ["it: Action is 2 types: clock.rs, job.rs"],
            )

    def test_a_bare_participle_is_named(self):
        for name in ("Laid", "Told", "Placed", "Untaken"):
            with self.subTest(name):
                self.assertEqual(
                    self.faults(lib=f"struct {name} {{}}"),
                    [f"it: {name} of lib.rs is a participle: say what it is"],
                )

    def test_types_of_a_trait_and_of_its_implementations_are_its_own(self):
        text = """
            trait Core { type Output; }
            impl Core for A { type Output = u8; }
            impl Core for B { type Output = u16; }
        """
        self.assertEqual(self.faults(lib=text), [])

    def test_what_stands_in_for_an_absent_feature_defines_nothing_of_its_own(self):
        text = """
            #[cfg(feature = "x")]
            mod x;
            #[cfg(not(feature = "x"))]
            #[path = "x_absent.rs"]
            mod x;
        """
        self.assertEqual(self.faults(lib=text, x="struct X;", x_absent="struct X;"), [])

    def test_tests_comments_and_strings_define_nothing(self):
        text = """
            // struct Told;
            const TEXT: &str = "struct Told;";
            #[cfg(test)]
            mod tests { struct Told; }
        """
        self.assertEqual(self.faults(lib=text, tests="struct Told;", tests__a="struct Laid;"), [])


if __name__ == "__main__":
    unittest.main()
