//! What each device did when: spans that several processes record and anyone can merge.
//!
//! Every span is stamped in microseconds since 1970 by a clock the recorder was given, so spans of
//! several processes lie on one axis as far as their clocks agree.

mod text;
mod trace;

use serde::{Deserialize, Serialize};

pub use text::Glyphs;

/// A moment: microseconds since 1970-01-01 UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMicros(pub u64);

/// What a device did during a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// It computed.
    Compute,
    /// It took in weights or tensors, compiling included.
    TransferIn,
    /// It gave out tensors.
    TransferOut,
    /// It waited for something that is named.
    Wait,
}

/// One stretch of one device's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The device, as people should read it, `emulated` included where it is.
    pub device: String,
    /// Which of the device's parallel lanes, such as a queue; one row each in a trace.
    pub lane: String,
    /// What was done.
    pub name: String,
    /// What kind of doing it was.
    pub kind: SpanKind,
    /// When it began.
    pub start: UnixMicros,
    /// When it ended; not before `start`.
    pub end: UnixMicros,
}

/// Spans of one run, of any number of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    spans: Vec<Span>,
}

impl UnixMicros {
    /// Microseconds from `earlier` to this moment; 0 if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `micros` microseconds later.
    #[must_use]
    pub fn later(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

impl Span {
    /// Length in microseconds.
    #[must_use]
    pub fn micros(&self) -> u64 {
        self.end.since(self.start)
    }
}

impl Timeline {
    /// Adds a span. One that ends before it starts, as clocks set back can make it, is cut to its
    /// start.
    pub fn push(&mut self, mut span: Span) {
        span.end = span.end.max(span.start);
        self.spans.push(span);
    }

    /// Takes in the spans of another recorder.
    pub fn merge(&mut self, other: Self) {
        other.spans.into_iter().for_each(|span| self.push(span));
    }

    /// The spans, in the order they were recorded or merged.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// When the first span begins and the last one ends; `None` without spans.
    #[must_use]
    pub fn extent(&self) -> Option<(UnixMicros, UnixMicros)> {
        let start = self.spans.iter().map(|span| span.start).min()?;
        let end = self.spans.iter().map(|span| span.end).max()?;
        Some((start, end))
    }

    /// Names of devices, by when they first did something.
    #[must_use]
    pub fn devices(&self) -> Vec<&str> {
        let mut ordered: Vec<&Span> = self.spans.iter().collect();
        ordered.sort_by_key(|span| span.start);
        let mut devices: Vec<&str> = Vec::new();
        for span in ordered {
            if !devices.contains(&span.device.as_str()) {
                devices.push(&span.device);
            }
        }
        devices
    }

    /// Microseconds during which `device` did `kind` in at least one lane.
    #[must_use]
    pub fn covered_micros(&self, device: &str, kind: SpanKind) -> u64 {
        self.covered_by_any(device, &[kind])
    }

    /// Microseconds during which at least one device computed.
    #[must_use]
    pub fn computing_micros(&self) -> u64 {
        let computing = self
            .spans
            .iter()
            .filter(|span| span.kind == SpanKind::Compute);
        covered(computing.map(|span| (span.start.0, span.end.0)).collect())
    }

    /// Microseconds during which `device` did any of `kinds` in at least one lane.
    #[must_use]
    pub fn covered_by_any(&self, device: &str, kinds: &[SpanKind]) -> u64 {
        let of_device = self.spans.iter().filter(|span| span.device == device);
        let matching = of_device.filter(|span| kinds.contains(&span.kind));
        covered(matching.map(|span| (span.start.0, span.end.0)).collect())
    }
}

/// Length of what the stretches cover, each moment counted once.
fn covered(mut stretches: Vec<(u64, u64)>) -> u64 {
    stretches.sort_unstable();
    let (mut covered, mut reached) = (0, 0);
    for (start, end) in stretches {
        covered += end.saturating_sub(start.max(reached));
        reached = reached.max(end);
    }
    covered
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn span(device: &str, kind: SpanKind, start: u64, end: u64) -> Span {
        let (start, end) = (UnixMicros(start), UnixMicros(end));
        let (device, lane, name) = (device.to_owned(), "run".to_owned(), "task".to_owned());
        Span {
            device,
            lane,
            name,
            kind,
            start,
            end,
        }
    }

    #[test]
    fn overlapping_spans_are_covered_once() {
        let mut timeline = Timeline::default();
        timeline.push(span("a", SpanKind::Compute, 0, 10));
        timeline.push(span("a", SpanKind::Compute, 5, 20));
        timeline.push(span("a", SpanKind::Compute, 30, 40));
        timeline.push(span("a", SpanKind::Wait, 20, 30));
        assert_eq!(timeline.covered_micros("a", SpanKind::Compute), 30);
        assert_eq!(timeline.covered_micros("b", SpanKind::Compute), 0);
    }

    #[test]
    fn merged_recorders_share_one_axis() {
        let mut first = Timeline::default();
        first.push(span("late", SpanKind::Compute, 50, 60));
        let mut second = Timeline::default();
        second.push(span("early", SpanKind::Compute, 10, 5));
        first.merge(second);
        assert_eq!(first.extent(), Some((UnixMicros(10), UnixMicros(60))));
        assert_eq!(first.devices(), ["early", "late"]);
    }
}
