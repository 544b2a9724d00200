//! Plans the scheduling instances of a benchmark file with one planner, writes the schedules to
//! OUT.jsonl, and prints a report as JSON: `plan FILE.json.gz PLANNER BUDGET_MS OUT.jsonl`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, planner, budget, out] = arguments.as_slice() else {
        return Err("bench_plan FILE.json.gz PLANNER BUDGET_MS OUT.jsonl".into());
    };
    let report =
        souk_scheduler_bench::plan_file(Path::new(file), planner, budget.parse()?, Path::new(out))?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
