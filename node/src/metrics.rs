//! What a node says of itself to whoever watches it: figures in the text format of Prometheus, over
//! HTTP, on a loopback address and only where it is asked for.
//!
//! A page is made when it is asked for, from what the node keeps anyway; nothing is counted for its
//! sake but a few sums. It holds figures alone: no account, address or content id, so that whoever
//! may read it learns how busy a node is and not with whom.

mod machine;
pub(crate) mod peers;
mod server;

use std::fmt::Write;

pub use server::{MetricsError, MetricsListener};

/// The metrics of a node at a moment.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

/// How a figure moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, but for a start or where its owner begins it anew.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// The figures of one name.
pub struct Family<'p> {
    page: &'p mut Page,
    name: &'static str,
}

impl Page {
    /// A page with what is told of any node's process and machine.
    #[must_use]
    pub fn of_machine() -> Page {
        let mut page = Page::default();
        machine::tell(&mut page);
        page
    }

    /// The figures of a name, with a sentence on what they are.
    ///
    /// # Panics
    /// If the name is none: letters, digits and underscores, and the unit last.
    pub fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> Family<'_> {
        assert!(is_name(name), "{name} is no name of a metric");
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let help = escaped(help, false);
        put(
            &mut self.text,
            format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
        );
        Family { page: self, name }
    }

    /// One figure without labels that goes up and down.
    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl Into<Figure>) {
        self.family(Kind::Gauge, name, help).put(&[], value);
    }

    /// One figure without labels that only grows.
    pub fn counter(&mut self, name: &'static str, help: &str, value: impl Into<Figure>) {
        self.family(Kind::Counter, name, help).put(&[], value);
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// One figure, told apart from the others of its name by its labels.
    pub fn put(&mut self, labels: &[(&str, &str)], value: impl Into<Figure>) -> &mut Self {
        let text = &mut self.page.text;
        text.push_str(self.name);
        for (place, (label, value)) in labels.iter().enumerate() {
            debug_assert!(is_name(label), "{label} is no name of a label");
            let before = if place == 0 { '{' } else { ',' };
            put(
                text,
                format_args!("{before}{label}=\"{}\"", escaped(value, true)),
            );
        }
        if !labels.is_empty() {
            text.push('}');
        }
        put(text, format_args!(" {}\n", value.into().0));
        self
    }
}

/// A figure as it is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure(f64);

impl From<u64> for Figure {
    fn from(value: u64) -> Figure {
        Figure(value as f64)
    }
}

impl From<usize> for Figure {
    fn from(value: usize) -> Figure {
        Figure(value as f64)
    }
}

impl From<f64> for Figure {
    fn from(value: f64) -> Figure {
        Figure(if value.is_finite() { value } else { 0.0 })
    }
}

impl From<bool> for Figure {
    fn from(value: bool) -> Figure {
        Figure(if value { 1.0 } else { 0.0 })
    }
}

/// Seconds of a number of microseconds.
#[must_use]
pub fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn put(text: &mut String, words: std::fmt::Arguments<'_>) {
    let written = text.write_fmt(words);
    written.expect("a text takes whatever is written");
}

fn is_name(name: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = name.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic()) && name.bytes().all(rest)
}

/// A text as it stands in a line; within quotes, where it is a label's value.
fn escaped(text: &str, is_quoted: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => safe.push_str("\\\\"),
            '\n' => safe.push_str("\\n"),
            '"' if is_quoted => safe.push_str("\\\""),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_text_format_of_prometheus() {
        let mut page = Page::default();
        page.gauge("souk_peers", "Who is connected.", 3_usize);
        page.family(Kind::Counter, "souk_joules_total", "By\nmeter \\ model.")
            .put(&[("device", "a \"b\"\\\n"), ("source", "meter")], 1.5)
            .put(&[("device", "c"), ("source", "model")], f64::NAN);
        let expected = "# HELP souk_peers Who is connected.\n\
                        # TYPE souk_peers gauge\n\
                        souk_peers 3\n\
                        # HELP souk_joules_total By\\nmeter \\\\ model.\n\
                        # TYPE souk_joules_total counter\n\
                        souk_joules_total{device=\"a \\\"b\\\"\\\\\\n\",source=\"meter\"} 1.5\n\
                        souk_joules_total{device=\"c\",source=\"model\"} 0\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn large_figures_are_told_whole() {
        let mut page = Page::default();
        page.counter("souk_bytes_total", "Bytes.", 1_u64 << 52);
        assert!(
            page.into_text()
                .ends_with("souk_bytes_total 4503599627370496\n")
        );
    }

    #[test]
    fn names_are_checked() {
        assert!(is_name("souk_memory_used_bytes"));
        for wrong in ["", "9a", "a-b", "a b", "ä"] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
