//! Renders the metrics of a node in the text format of Prometheus. Providers and validators fill a
//! [`Page`], which the gateway's HTTP server offers.
//!
//! A page is rendered on request, from state that the node keeps anyway; only a few sums exist for
//! its sake. It holds figures alone: no account, address or content id. A reader can learn how busy
//! a node is, but not with whom.

mod machine;
pub mod peers;

use std::sync::Arc;

use futures::future::BoxFuture;
use prometheus::core::Collector;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TextEncoder};

pub use prometheus::TEXT_FORMAT;

/// The metrics of a node at a moment.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<MetricFamily>,
}

/// A function that renders a page on request; it returns none once the node has stopped.
pub type PageMaker = Arc<dyn Fn() -> BoxFuture<'static, Option<Page>> + Send + Sync>;

/// How a figure can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, unless the node restarts or its owner resets it.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// The figures of one name.
pub struct Family<'p> {
    family: &'p mut MetricFamily,
    kind: MetricKind,
}

impl Page {
    /// Returns a page with the figures of the process and the machine, which any node has.
    #[must_use]
    pub fn of_machine() -> Page {
        let mut page = Page::default();
        machine::add_metrics(&mut page);
        page
    }

    /// Returns the figures of a name, with a sentence of help.
    ///
    /// # Panics
    /// If the name is not valid: it must begin with a letter and consist of letters, digits and
    /// underscores. The unit should come last.
    pub fn add_family(&mut self, kind: MetricKind, name: &'static str, help: &str) -> Family<'_> {
        assert!(is_name(name), "{name} is no name of a metric");
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(match kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
        });
        self.families.push(family);
        let family = self.families.last_mut().expect("it was put there just now");
        Family { family, kind }
    }

    /// Adds one figure without labels that goes up and down.
    pub fn add_gauge(&mut self, name: &'static str, help: &str, value: impl Into<Figure>) {
        self.add_family(MetricKind::Gauge, name, help)
            .add_figure(&[], value);
    }

    /// Adds one figure without labels that only grows.
    pub fn add_counter(&mut self, name: &'static str, help: &str, value: impl Into<Figure>) {
        self.add_family(MetricKind::Counter, name, help)
            .add_figure(&[], value);
    }

    /// Adds the figures of a collector, for example a histogram.
    pub fn add_collector(&mut self, counted: &impl Collector) {
        self.families.extend(counted.collect());
    }

    /// Renders the page as text.
    #[must_use]
    pub fn into_text(mut self) -> String {
        // A name without figures is left out.
        self.families
            .retain(|family| !family.get_metric().is_empty());
        let mut text = Vec::new();
        let written = TextEncoder::new().encode(&self.families, &mut text);
        written.expect("each family has a name and figures");
        String::from_utf8(text).expect("names and figures are text")
    }
}

impl Family<'_> {
    /// Adds one figure, with labels that distinguish it from the others of its name.
    pub fn add_figure(&mut self, labels: &[(&str, &str)], value: impl Into<Figure>) -> &mut Self {
        let pair = |(name, value): &(&str, &str)| {
            debug_assert!(is_name(name), "{name} is no name of a label");
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        let mut metric = Metric::from_label(labels.iter().map(pair).collect());
        let value = value.into().0;
        match self.kind {
            MetricKind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            MetricKind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        self.family.mut_metric().push(metric);
        self
    }
}

/// The value of a figure; not a number if it is unknown.
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
        Figure(value)
    }
}

impl From<bool> for Figure {
    fn from(value: bool) -> Figure {
        Figure(if value { 1.0 } else { 0.0 })
    }
}

/// Converts microseconds to seconds.
#[must_use]
pub fn to_seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn is_name(name: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = name.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic()) && name.bytes().all(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_text_format_of_prometheus() {
        let mut page = Page::default();
        page.add_gauge("souk_peers", "Who is connected.", 3_usize);
        page.add_family(
            MetricKind::Counter,
            "souk_joules_total",
            "By\nmeter \\ model.",
        )
        .add_figure(&[("device", "a \"b\"\\\n"), ("source", "meter")], 1.5)
        .add_figure(&[("device", "c"), ("source", "model")], f64::NAN);
        let expected = "# HELP souk_peers Who is connected.\n\
                        # TYPE souk_peers gauge\n\
                        souk_peers 3\n\
                        # HELP souk_joules_total By\\nmeter \\\\ model.\n\
                        # TYPE souk_joules_total counter\n\
                        souk_joules_total{device=\"a \\\"b\\\"\\\\\\n\",source=\"meter\"} 1.5\n\
                        souk_joules_total{device=\"c\",source=\"model\"} NaN\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn large_figures_are_told_whole() {
        let mut page = Page::default();
        page.add_counter("souk_bytes_total", "Bytes.", 1_u64 << 52);
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
