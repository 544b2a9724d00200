//! Writes a timeline as a trace for Perfetto and Chrome: processes are devices, threads are lanes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Span, SpanKind, Timeline};

impl Timeline {
    /// Returns the timeline in the JSON trace format, which you can open at ui.perfetto.dev or
    /// chrome://tracing.
    #[must_use]
    pub fn to_trace_json(&self) -> String {
        let devices = self.device_names();
        let mut lanes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for span in self.spans() {
            let next = lanes.len() + 1;
            lanes.entry((&span.device, &span.lane)).or_insert(next);
        }
        let process = |device: &str| devices.iter().position(|name| *name == device);
        let mut events: Vec<Value> = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            events.push(name_event("process_name", index + 1, 0, device));
        }
        for ((device, lane), thread) in &lanes {
            let process = process(device).map_or(0, |index| index + 1);
            events.push(name_event("thread_name", process, *thread, lane));
        }
        for span in self.spans() {
            let process = process(&span.device).map_or(0, |index| index + 1);
            let thread = lanes[&(span.device.as_str(), span.lane.as_str())];
            events.push(span_event(span, process, thread));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
    }
}

fn name_event(event: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": event, "pid": process, "tid": thread, "args": { "name": name } })
}

fn span_event(span: &Span, process: usize, thread: usize) -> Value {
    json!({
        "ph": "X",
        "name": span.name,
        "cat": category_name(span.kind),
        "ts": span.start.0,
        "dur": span.length_micros(),
        "pid": process,
        "tid": thread,
    })
}

fn category_name(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Compute => "compute",
        SpanKind::TransferIn => "transfer-in",
        SpanKind::TransferOut => "transfer-out",
        SpanKind::Wait => "wait",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::span;
    use super::*;

    #[test]
    fn every_span_is_an_event_of_its_device_and_lane() {
        let mut timeline = Timeline::default();
        timeline.push(span("cpu", SpanKind::Compute, 10, 30));
        timeline.push(span("gpu", SpanKind::TransferOut, 30, 35));
        let trace: Value = serde_json::from_str(&timeline.to_trace_json()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans.len(), 2);
        assert_eq!(
            (&spans[0]["ts"], &spans[0]["dur"]),
            (&json!(10), &json!(20))
        );
        assert_eq!(spans[1]["cat"], "transfer-out");
        assert_ne!(spans[0]["pid"], spans[1]["pid"]);
    }
}
