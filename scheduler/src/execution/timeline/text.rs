//! Draws a timeline in characters: one row for each device, a scale and a legend.

use super::{Span, SpanKind, Timeline, UnixMicros};

/// Minimum width of a useful bar in columns.
const BAR_COLUMNS_MIN: usize = 10;
/// Maximum width of device names in columns.
const LABEL_COLUMNS_MAX: usize = 32;

/// The characters of a drawn timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Blocks and shades.
    Unicode,
    /// Plain ASCII, for terminals and logs that support nothing else.
    Ascii,
}

impl Glyphs {
    /// Returns the character of a kind.
    fn char_for(self, kind: SpanKind) -> char {
        match (self, kind) {
            (Self::Unicode, SpanKind::Compute) => '█',
            (Self::Unicode, SpanKind::TransferIn) => '▒',
            (Self::Unicode, SpanKind::TransferOut) => '░',
            (Self::Unicode, SpanKind::Wait) => '·',
            (Self::Ascii, SpanKind::Compute) => '#',
            (Self::Ascii, SpanKind::TransferIn) => '<',
            (Self::Ascii, SpanKind::TransferOut) => '>',
            (Self::Ascii, SpanKind::Wait) => '.',
        }
    }
}

/// Returns the precedence of a kind in a shared column: computing hides transfers, and transfers
/// hide waits.
fn kind_precedence(kind: SpanKind) -> u8 {
    match kind {
        SpanKind::Wait => 0,
        SpanKind::TransferIn | SpanKind::TransferOut => 1,
        SpanKind::Compute => 2,
    }
}

impl Timeline {
    /// Draws the timeline for a terminal of `columns` columns, one line for each device; empty
    /// without spans. Lines can be longer if that leaves no useful width for a bar.
    #[must_use]
    pub fn draw(&self, columns: usize, glyphs: Glyphs) -> String {
        let Some((start, end)) = self.time_extent() else {
            return String::new();
        };
        let devices = self.device_names();
        let longest = devices
            .iter()
            .map(|name| name.chars().count())
            .max()
            .unwrap_or(0);
        let label = longest.min(LABEL_COLUMNS_MAX);
        let bar = columns
            .saturating_sub(label + 1 + BUSY_COLUMNS)
            .max(BAR_COLUMNS_MIN);
        let axis = Axis {
            start,
            micros: end.micros_since(start).max(1),
            columns: bar,
        };
        let mut lines: Vec<String> = devices
            .iter()
            .map(|device| self.draw_row(device, label, &axis, glyphs))
            .collect();
        lines.push(format!("{:label$} {}", "", axis.draw_scale()));
        lines.push(format!("{:label$} {}", "", draw_legend(glyphs)));
        lines.join("\n") + "\n"
    }

    fn draw_row(&self, device: &str, label: usize, axis: &Axis, glyphs: Glyphs) -> String {
        let mut cells: Vec<Option<SpanKind>> = vec![None; axis.columns];
        for span in self.spans().iter().filter(|span| span.device == device) {
            for cell in &mut cells[axis.columns_of(span)] {
                let stronger =
                    cell.is_none_or(|kind| kind_precedence(kind) < kind_precedence(span.kind));
                if stronger {
                    *cell = Some(span.kind);
                }
            }
        }
        let bar: String = cells
            .iter()
            .map(|cell| cell.map_or(' ', |kind| glyphs.char_for(kind)))
            .collect();
        let busy = self.covered_micros(device, SpanKind::Compute) * 100 / axis.micros;
        let name: String = device.chars().take(label).collect();
        format!("{name:label$} {bar} {busy:>3} %")
    }
}

/// Width of the busy figure at the end of a row.
const BUSY_COLUMNS: usize = " 100 %".len();

/// The mapping of moments to columns of a row.
struct Axis {
    start: UnixMicros,
    /// Length in microseconds; at least 1.
    micros: u64,
    columns: usize,
}

impl Axis {
    /// Returns the columns that a span covers: at least one.
    fn columns_of(&self, span: &Span) -> std::ops::Range<usize> {
        let column = |moment: UnixMicros| {
            let part = u128::from(moment.micros_since(self.start)) * self.columns as u128;
            (part / u128::from(self.micros)) as usize
        };
        let first = column(span.start).min(self.columns - 1);
        first..column(span.end).clamp(first + 1, self.columns)
    }

    /// Returns the scale: zero at the left, the length at the right.
    fn draw_scale(&self) -> String {
        let end = duration_text(self.micros);
        let columns = self.columns.saturating_sub(1);
        format!("0{end:>columns$}")
    }
}

/// Formats microseconds for people.
fn duration_text(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

fn draw_legend(glyphs: Glyphs) -> String {
    let kinds = [
        (SpanKind::Compute, "compute"),
        (SpanKind::TransferIn, "take in"),
        (SpanKind::TransferOut, "give out"),
        (SpanKind::Wait, "wait"),
    ];
    kinds
        .map(|(kind, name)| format!("{} {name}", glyphs.char_for(kind)))
        .join("  ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::span;
    use super::*;

    #[test]
    fn a_timeline_is_drawn_to_scale() {
        let mut timeline = Timeline::default();
        timeline.push(span("cpu", SpanKind::TransferIn, 0, 2_500));
        timeline.push(span("cpu", SpanKind::Compute, 2_500, 5_000));
        timeline.push(span("gpu (emulated)", SpanKind::Wait, 0, 5_000));
        timeline.push(span("gpu (emulated)", SpanKind::Compute, 5_000, 10_000));
        let drawn = timeline.draw(41, Glyphs::Ascii);
        let expected = "\
cpu            <<<<<#####            25 %
gpu (emulated) ..........##########  50 %
               0            10.0 ms
               # compute  < take in  > give out  . wait
";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn no_spans_draw_nothing_and_the_shortest_one_a_column() {
        assert_eq!(Timeline::default().draw(80, Glyphs::Unicode), "");
        let mut timeline = Timeline::default();
        timeline.push(span("cpu", SpanKind::Compute, 7, 7));
        assert!(timeline.draw(0, Glyphs::Unicode).starts_with("cpu █"));
    }
}
