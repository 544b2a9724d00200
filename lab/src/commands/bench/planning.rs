//! `souk bench plan` and `souk bench partition`: runs souk's planners on published scheduling
//! problems and graphs, and writes the plans to a file; `plan` also compares them with the best
//! known ones.

use std::path::Path;

use souk_scheduler_bench::{BenchError, partition_file, plan_file};

use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// Plans every instance of a file and writes the schedules, one for each line.
pub fn plan_instances(
    output: Output,
    file: &Path,
    planner: &str,
    budget_ms: u64,
    out: &Path,
) -> Outcome {
    let report = plan_file(file, planner, budget_ms, out).map_err(from_bench)?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => {
            print_line(&format!(
                "{}: {} instances, {:.4} x the best known, {:.4} x HEFT, {} new best, {} worse \
                 than HEFT, {} worse than one device, at most {:.1} ms",
                report.planner,
                report.instances,
                report.to_best_known,
                report.to_heft,
                report.new_best,
                report.worse_than_heft,
                report.worse_than_single,
                report.longest_ms,
            ));
        }
    }
    Ok(())
}

/// Partitions every graph of a file and writes the placements, one for each line.
pub fn partition_graphs(output: Output, file: &Path, out: &Path) -> Outcome {
    let report = partition_file(file, out).map_err(from_bench)?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => {
            for row in &report.graphs {
                print_line(&format!(
                    "{}: largest load {:.3}, {:.0} ms",
                    row.id, row.load, row.took_ms
                ));
            }
        }
    }
    Ok(())
}

fn from_bench(error: BenchError) -> Failure {
    Failure::new(
        Kind::Input,
        error,
        "give a file of instances, as docs/performance.md describes",
    )
}
