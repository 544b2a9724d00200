//! Measures how the time of planners grows from 100 to 100,000 tasks, and draws the figure of
//! docs/performance.md: `growth [OUT.svg]`.
//!
//! Prints one line for each size and planner. Times are the processor time of this thread, the
//! least of a few runs.

use std::fmt::Write;

use souk_scheduler::planning::planner::{find_planner, step_pace};
use souk_scheduler_bench::{Stopwatch, layered_problem};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const SIZES: [usize; 7] = [100, 300, 1_000, 3_000, 10_000, 30_000, 100_000];
const DEVICES: usize = 16;

/// Planners, the most tasks they are measured with, and the colour of their line.
const LINES: [(&str, usize, &str); 4] = [
    ("heft", 100_000, "#1b6ca8"),
    ("peft", 100_000, "#8e6bbf"),
    ("lookahead", 100_000, "#d08c2e"),
    ("dls", 3_000, "#b5433a"),
];

/// The drawing, in pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const RIGHT: f64 = 100.0;
const TOP: f64 = 20.0;
/// Decades: 100 to 100,000 tasks, 1 us to 10 s.
const TASKS: (f64, f64) = (2.0, 5.0);
const SECONDS: (f64, f64) = (-6.0, 1.0);

fn main() -> Result<()> {
    let out = std::env::args().nth(1);
    let mut lines = Vec::new();
    for (name, most, colour) in LINES {
        let mut points = Vec::new();
        for tasks in SIZES.into_iter().filter(|&tasks| tasks <= most) {
            let seconds = measure(name, tasks)?;
            println!(
                "{name:>10} {tasks:>7} x {DEVICES}: {:10.3} ms",
                seconds * 1e3
            );
            points.push((tasks as f64, seconds));
        }
        lines.push((name, colour, points));
    }
    if let Some(out) = out {
        std::fs::write(&out, draw_chart(&lines)?)?;
        println!("{out}");
    }
    Ok(())
}

fn measure(name: &str, tasks: usize) -> Result<f64> {
    let problem = layered_problem(tasks, DEVICES)?;
    let plan = find_planner(name).ok_or("the planner exists")?;
    let mut least = f64::INFINITY;
    for _ in 0..(100_000 / tasks).clamp(3, 20) {
        let watch = Stopwatch::start();
        plan(&problem, &mut step_pace(0))?;
        least = least.min(watch.elapsed().as_secs_f64());
    }
    Ok(least)
}

fn x(tasks: f64) -> f64 {
    let share = (tasks.log10() - TASKS.0) / (TASKS.1 - TASKS.0);
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

fn y(seconds: f64) -> f64 {
    let share = (seconds.log10() - SECONDS.0) / (SECONDS.1 - SECONDS.0);
    HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
}

type Line = (&'static str, &'static str, Vec<(f64, f64)>);

fn draw_chart(lines: &[Line]) -> Result<String> {
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    writeln!(
        svg,
        "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"
    )?;
    axes(&mut svg)?;
    for (name, colour, points) in lines {
        let path: Vec<String> = points
            .iter()
            .map(|&(tasks, seconds)| format!("{:.1},{:.1}", x(tasks), y(seconds)))
            .collect();
        writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        )?;
        if let Some(&(tasks, seconds)) = points.last() {
            let (x, y) = (x(tasks) + 6.0, y(seconds) + 4.0);
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>"
            )?;
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn axes(svg: &mut String) -> Result<()> {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for decade in TASKS.0 as i32..=TASKS.1 as i32 {
        let (value, x) = (10f64.powi(decade), x(10f64.powi(decade)));
        writeln!(
            svg,
            "<path stroke=\"#dddddd\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            bottom + 18.0
        )?;
    }
    let names = [
        "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s",
    ];
    for (decade, name) in (SECONDS.0 as i32..).zip(names) {
        let y = y(10f64.powi(decade));
        writeln!(
            svg,
            "<path stroke=\"#dddddd\" d=\"M{LEFT} {y:.1}H{right}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 6.0,
            y + 4.0
        )?;
    }
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">tasks on {DEVICES} devices</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 10.0
    )?;
    Ok(())
}
