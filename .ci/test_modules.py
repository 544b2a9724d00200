"""What the check of modules finds in a small crate: python3 -m unittest discover .ci"""
import pathlib
import tempfile
import unittest

import modules


class Modules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sources = pathlib.Path(folder.name)

    def crate(self, **files):
        """Writes a crate; `a__b` is the file a/b.rs."""
        for name, text in files.items():
            file = self.sources.joinpath(*name.split("__")).with_suffix(".rs")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

    def edges(self):
        return sorted(modules.Crate(self.sources).imports())

    def faults(self, floors=None):
        return list(modules.faults("it", self.sources, floors))

    def test_imports_that_go_down_are_no_fault(self):
        self.crate(lib="mod a; pub mod b;", a="use crate::b::Thing;", b="pub struct Thing;")
        self.assertEqual(self.edges(), [((), "a", "b")])
        self.assertEqual(self.faults([["b"], ["a"]]), [])

    def test_one_that_goes_up_or_beside_is_named_with_its_import(self):
        self.crate(lib="mod a; mod b;", a="", b="fn f() { crate::a::g() }")
        for floors in ([["b"], ["a"]], [["a", "b"]]):
            self.assertEqual(
                self.faults(floors), ["it: b must not know a: b.rs names crate::a::g"]
            )

    def test_each_top_module_stands_on_a_floor(self):
        self.crate(lib="mod a;", a="")
        self.assertEqual(
            self.faults([["b"]]),
            [
                "it: a stands on no floor of .ci/floors.toml",
                "it: b is no module of .ci/floors.toml",
            ],
        )

    def test_a_ring_below_a_parent_is_found(self):
        self.crate(
            lib="mod p;",
            p="mod a; mod b; mod c; mod d;",
            p__a="use super::b::{self, B as Other};",
            p__b="use crate::p::{c::C, d};",
            p__c="fn f() -> super::a::A {}",
            p__d="",
        )
        [fault] = self.faults()
        self.assertEqual(
            fault.splitlines(),
            [
                "it: a, b, c in p import each other",
                "    a -> b: p/a.rs names super::b; p/a.rs names super::b::B",
                "    b -> c: p/b.rs names crate::p::c::C",
                "    c -> a: p/c.rs names super::a::A",
            ],
        )

    def test_what_a_parent_takes_from_a_child_leads_to_the_child(self):
        self.crate(
            lib="mod p; mod q;",
            p="mod a; mod b; pub use a::A; pub use self::b::f as g;",
            p__a="use super::g;",
            p__b="use super::A;",
            q="use crate::p::A;",
        )
        self.assertEqual(
            self.edges(), [((), "q", "p"), (("p",), "a", "b"), (("p",), "b", "a")]
        )

    def test_a_parent_and_its_children_count_as_one(self):
        self.crate(lib="mod p;", p="mod a; use a::A; struct P;", p__a="use super::P;")
        self.assertEqual(self.edges(), [])

    def test_tests_comments_and_strings_import_nothing(self):
        self.crate(
            lib="mod a; mod b;",
            a="""
                //! See [`crate::b`].
                /* crate::b::x */
                const TEXT: &str = "crate::b::x \\" crate::b";
                const RAW: &str = r#"crate::b::x"#;
                #[cfg(test)]
                use crate::b::X;
                #[cfg(all(test, unix))]
                #[derive(Debug)]
                struct Y(crate::b::X);
                #[cfg(test)]
                mod tests { use crate::b::X; }
                fn f<'a>(sign: char) -> bool { sign == '"' || sign == '\\'' }
                #[cfg(test)]
                mod more;
            """,
            b="use crate::a;",
        )
        self.assertEqual(self.edges(), [((), "b", "a")])

    def test_a_module_may_lie_elsewhere(self):
        self.crate(
            lib="mod p;",
            p='mod b;\n#[path = "p/other.rs"]\nmod a;',
            p__other="use super::b;",
            p__b="use super::a;",
        )
        self.assertEqual(self.edges(), [(("p",), "a", "b"), (("p",), "b", "a")])


if __name__ == "__main__":
    unittest.main()
