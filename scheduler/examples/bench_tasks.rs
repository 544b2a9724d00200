//! `bench_tasks [DEVICES]`: the executor's cost for each task as JSON.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices = std::env::args().nth(1).map_or(Ok(2), |text| text.parse())?;
    let report = souk_scheduler::bench::tasks(devices)?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
