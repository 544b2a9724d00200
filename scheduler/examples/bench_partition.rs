//! `bench_partition FILE.json.gz OUT.jsonl`: the report as JSON.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, out] = arguments.as_slice() else {
        return Err("bench_partition FILE.json.gz OUT.jsonl".into());
    };
    let report = souk_scheduler::bench::partition_file(Path::new(file), Path::new(out))?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
