//! Draws how the figures of a simulated market change with the number of providers: one SVG picture
//! of small charts, each with the number of providers on a logarithmic axis.

use std::fmt::Write;

use super::Played;

/// A figure of a simulated crowd.
type Figure = fn(&Played) -> f64;

/// The figures of the table and the picture, with their units.
pub const FIGURES: &[(&str, Figure)] = &[
    ("leases an hour", |it| {
        it.report.leases as f64 * 60.0 / it.report.minutes as f64
    }),
    ("placed within 5 s, %", |it| {
        it.report.placed_at_once_percent
    }),
    ("start p50, s", |it| it.report.start_p50_s),
    ("start p99, s", |it| it.report.start_p99_s),
    ("busy, %", |it| it.report.busy_percent),
    ("ideal, %", |it| it.report.ideal_percent),
    ("idle provider, questions/s", |it| {
        it.report.idle_questions_s
    }),
    ("idle provider, kB/s", |it| it.report.idle_bytes_s / 1e3),
    ("validator, cores", |it| it.report.validator_cores),
    ("longest queue, ms", |it| it.report.queue_ms_max),
    ("log, kB/s", |it| it.report.log_bytes_s / 1e3),
    ("lease messages/s", |it| {
        it.report.lease_messages as f64 / (it.report.minutes as f64 * 60.0)
    }),
    ("ghosts met, %", |it| it.report.ghosts_met_percent),
    ("taken by another, %", |it| {
        it.report.taken_by_another_percent
    }),
    ("shares apart, median", |it| it.report.fairness_median),
    ("prices apart, %", |it| it.report.price_range_percent),
    ("simulator, minutes", |it| it.seconds / 60.0),
    ("simulator, GB at most", |it| {
        it.memory_bytes.unwrap_or(0) as f64 / 1e9
    }),
];

/// The size of a chart and its margins, and the charts of a row.
const WIDTH: f64 = 250.0;
const HEIGHT: f64 = 150.0;
const MARGIN: f64 = 34.0;
const COLUMNS: usize = 3;

/// Returns a figure with three digits or more.
pub fn format_figure(figure: f64) -> String {
    match figure.abs() {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        1.0.. => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

/// Returns the picture of all figures.
pub fn draw_growth(all: &[Played]) -> String {
    let rows = FIGURES.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"9\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (number, (name, figure)) in FIGURES.iter().enumerate() {
        let x = (number % COLUMNS) as f64 * WIDTH;
        let y = (number / COLUMNS) as f64 * HEIGHT;
        let points = all.iter().map(|it| (it.report.providers, figure(it)));
        let chart = draw_chart(name, &points.collect::<Vec<_>>());
        writeln!(svg, "<g transform=\"translate({x} {y})\">{chart}</g>")
            .expect("a text takes all that is written");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns one chart: a line through the points, each with its value.
fn draw_chart(name: &str, points: &[(usize, f64)]) -> String {
    let sizes = points.iter().map(|(size, _)| (*size as f64).ln());
    let least = sizes.clone().fold(f64::INFINITY, f64::min);
    let span = sizes.fold(f64::NEG_INFINITY, f64::max) - least;
    let most = points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let place = |size: usize, value: f64| {
        let along = ((size as f64).ln() - least) / span.max(1e-9);
        let up = value / most.max(1e-9);
        let x = MARGIN + along * (WIDTH - 2.0 * MARGIN);
        (x, HEIGHT - MARGIN - up * (HEIGHT - 2.0 * MARGIN))
    };
    let (left, right, bottom) = (MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN);
    let mut line = String::new();
    let mut chart = format!(
        "<text x=\"{left}\" y=\"16\" font-weight=\"bold\">{name}</text>\
         <path d=\"M{left} {bottom}H{right}\" stroke=\"#999\"/>"
    );
    for (size, value) in points {
        let (x, y) = place(*size, *value);
        let step = if line.is_empty() { 'M' } else { 'L' };
        let (under, over) = (bottom + 12.0, y - 5.0);
        let text = format_figure(*value);
        write!(line, "{step}{x:.1} {y:.1}").expect("a text takes all that is written");
        write!(
            chart,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"#1b6ca8\"/>\
             <text x=\"{x:.1}\" y=\"{over:.1}\" text-anchor=\"middle\">{text}</text>\
             <text x=\"{x:.1}\" y=\"{under:.1}\" text-anchor=\"middle\" fill=\"#666\">{size}</text>"
        )
        .expect("a text takes all that is written");
    }
    format!("{chart}<path d=\"{line}\" fill=\"none\" stroke=\"#1b6ca8\"/>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_each_point_within_its_frame() {
        let chart = draw_chart("leases", &[(100, 5.0), (1_000, 20.0), (10_000, 10.0)]);
        let line = chart
            .split("d=\"M34.0")
            .nth(1)
            .expect("it begins at the margin");
        assert!(line.starts_with(" 95.5L125.0 34.0L216.0 75.0"), "{line}");
        assert_eq!(chart.matches("<circle").count(), 3);
        assert!(chart.contains(">20.0<") && chart.contains(">10000<"));
    }

    #[test]
    fn figures_have_three_digits() {
        let texts = [123.4, 12.34, 1.234, 0.1234].map(format_figure);
        assert_eq!(texts, ["123", "12.3", "1.23", "0.123"]);
    }
}
