//! Prints the time of a job in its three parts (upload, wait and compute) and its price, the
//! planned figures next to the measured ones.

use serde_json::{Value, json};
pub use souk_node::buyer::job_times::{JobStopwatch, JobTimes};

use super::{Table, format_credits, format_seconds};

/// Returns both as JSON.
pub fn to_json(planned: Option<JobTimes>, measured: Option<JobTimes>) -> Value {
    let [planned, measured] = [planned, measured].map(|times| times.map(JobTimes::to_json));
    json!({ "planned": planned, "measured": measured })
}

/// Returns the times as lines, without columns that are not known.
pub fn format_times(planned: Option<JobTimes>, measured: Option<JobTimes>) -> Vec<String> {
    let mut header = vec!["time"];
    header.extend(planned.map(|_| ">planned"));
    header.extend(measured.map(|_| ">measured"));
    let mut table = Table::new(&header);
    let names = ["upload", "wait", "compute", "in all"];
    for (place, name) in names.into_iter().enumerate() {
        let shown = |time: f64| {
            if time > 0.0 {
                format_seconds(time)
            } else {
                "-".to_owned()
            }
        };
        let of = |times: Option<JobTimes>| times.map(|times| shown(times.to_rows()[place]));
        let cells = [Some(name.to_owned()), of(planned), of(measured)];
        table.add_row(cells.into_iter().flatten());
    }
    let of = |times: Option<JobTimes>| times.map(|times| format_credits(times.price));
    let cells = [Some("credits".to_owned()), of(planned), of(measured)];
    table.add_row(cells.into_iter().flatten());
    table.to_lines()
}
