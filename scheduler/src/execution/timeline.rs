//! Records what each device did when, as spans from several processes that you can merge.
//!
//! The recorder's clock stamps each span in microseconds since 1970, so spans of several processes
//! share one axis as far as their clocks agree.

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

/// The activity of a device during a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// The device computed.
    Compute,
    /// The device received weights or tensors, or compiled.
    TransferIn,
    /// The device sent tensors.
    TransferOut,
    /// The device waited; the span's name states the reason.
    Wait,
}

/// One period of a device in a timeline: what it did, and from when to when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Name of the device for people, marked `emulated` if it is.
    pub device: String,
    /// One of the device's parallel lanes, such as a queue; a trace has a row for each.
    pub lane: String,
    /// Name of the activity.
    pub name: String,
    /// Kind of the activity.
    pub kind: SpanKind,
    /// Start of the span.
    pub start: UnixMicros,
    /// End of the span, which should not be before `start`.
    pub end: UnixMicros,
}

/// Spans of one run, of any number of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    spans: Vec<Span>,
}

impl UnixMicros {
    /// Returns the microseconds from `earlier` to this moment; 0 if it is not earlier.
    #[must_use]
    pub fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the moment `micros` microseconds later.
    #[must_use]
    pub fn saturating_add(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

impl Span {
    /// Returns the length in microseconds.
    #[must_use]
    pub fn length_micros(&self) -> u64 {
        self.end.micros_since(self.start)
    }
}

impl Timeline {
    /// Adds a span. If it ends before it starts, because a clock was set back, its end becomes its
    /// start.
    pub fn push(&mut self, mut span: Span) {
        span.end = span.end.max(span.start);
        self.spans.push(span);
    }

    /// Adds the spans of another recorder.
    pub fn merge(&mut self, other: Self) {
        other.spans.into_iter().for_each(|span| self.push(span));
    }

    /// Returns the spans in the order of their addition.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the start of the first span and the end of the last; `None` without spans.
    #[must_use]
    pub fn time_extent(&self) -> Option<(UnixMicros, UnixMicros)> {
        let start = self.spans.iter().map(|span| span.start).min()?;
        let end = self.spans.iter().map(|span| span.end).max()?;
        Some((start, end))
    }

    /// Returns the names of the devices, by the start of their first span.
    #[must_use]
    pub fn device_names(&self) -> Vec<&str> {
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

    /// Returns the microseconds during which `device` did `kind` in at least one lane.
    #[must_use]
    pub fn covered_micros(&self, device: &str, kind: SpanKind) -> u64 {
        self.covered_by_any(device, &[kind])
    }

    /// Returns the microseconds during which at least one device computed.
    #[must_use]
    pub fn computing_micros(&self) -> u64 {
        let computing = self
            .spans
            .iter()
            .filter(|span| span.kind == SpanKind::Compute);
        covered_length(computing.map(|span| (span.start.0, span.end.0)).collect())
    }

    /// Returns the microseconds during which `device` did any of `kinds` in at least one lane.
    #[must_use]
    pub fn covered_by_any(&self, device: &str, kinds: &[SpanKind]) -> u64 {
        let of_device = self.spans.iter().filter(|span| span.device == device);
        let matching = of_device.filter(|span| kinds.contains(&span.kind));
        covered_length(matching.map(|span| (span.start.0, span.end.0)).collect())
    }
}

/// Returns the total length of the periods, with overlaps counted once.
fn covered_length(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut covered, mut reached) = (0, 0);
    for (start, end) in intervals {
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
        assert_eq!(first.time_extent(), Some((UnixMicros(10), UnixMicros(60))));
        assert_eq!(first.device_names(), ["early", "late"]);
    }
}
