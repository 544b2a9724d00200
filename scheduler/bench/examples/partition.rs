//! Divides the graphs of a benchmark file over the devices of a pipeline, writes the placements to
//! OUT.jsonl, and prints a report as JSON: `partition FILE.json.gz OUT.jsonl [STEPS]`. With 0 steps
//! it finds only the best contiguous cuts.

use std::path::Path;

use souk_scheduler_bench::{partition_file, partition_file_in};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let report = match arguments.as_slice() {
        [file, out] => partition_file(Path::new(file), Path::new(out))?,
        [file, out, steps] => partition_file_in(Path::new(file), Path::new(out), steps.parse()?)?,
        _ => return Err("bench_partition FILE.json.gz OUT.jsonl [STEPS]".into()),
    };
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
