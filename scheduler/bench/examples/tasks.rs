//! Measures how much processor time the executor needs for each task, and prints the report as
//! JSON. It is `souk bench tasks` without the rest of souk.

use souk_scheduler_bench::measure_tasks;

fn main() {
    let report = measure_tasks(2).expect("two threads can be started");
    let text = serde_json::to_string_pretty(&report).expect("figures are JSON");
    println!("{text}");
}
