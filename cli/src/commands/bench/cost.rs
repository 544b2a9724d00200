//! `souk bench cost`: how well the cost model foretells the largest operators of models.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use souk_node::devices::bench::{self, Accuracy, Errors};
use souk_node::devices::cpu::Cpu;
use souk_node::devices::processor::Processor;
use souk_node::devices::{discover, measure, models};

use super::models::{named, refused};
use crate::args::{ModelSetArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// The figures of one model.
#[derive(Serialize)]
struct Row<'a> {
    model: &'a str,
    threads: usize,
    /// What was counted: `processor` time with one thread, else `wall` time.
    clock: &'static str,
    #[serde(flatten)]
    accuracy: Accuracy,
}

/// Measures the CPU, then each model's operators.
pub fn run(output: Output, args: &ModelSetArgs) -> Outcome {
    let description = discover::cpu();
    let measured = measure::cpu(&description, args.threads);
    let cpu = Cpu::new(measure::profile(&description, &measured), args.threads);
    let begin = Instant::now();
    let wall = || begin.elapsed();
    let (clock, name): (&dyn Fn() -> Duration, _) = match args.threads.get() {
        1 => (&processor_time, "processor"),
        _ => (&wall, "wall"),
    };
    for model in &args.models {
        let (path, sizes) = named(model)?;
        let subgraph = models::open(&path).map_err(|error| refused(&error))?;
        let program = cpu.compile(&subgraph);
        let program = program.map_err(|error| failed(model, &error))?;
        let inputs = models::inputs(&path, program.inputs(), &sizes);
        let inputs = inputs.map_err(|error| refused(&error))?;
        let found = bench::accuracy(&cpu, &subgraph, &inputs, args.operators, clock);
        let row = Row {
            model,
            threads: args.threads.get(),
            clock: name,
            accuracy: found.map_err(|error| failed(model, &error))?,
        };
        match output {
            Output::Json => show::json(&row),
            Output::Text => print(&row),
        }
    }
    Ok(())
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn failed(model: &str, cause: &dyn std::fmt::Display) -> Failure {
    let fix = "run `souk bench models` on it by itself";
    Failure::new(Kind::Input, format!("{model}: {cause}"), fix)
}

fn print(row: &Row<'_>) {
    let percent = |it: Errors| format!("{:.1} % / {:.1} %", it.median * 1e2, it.p90 * 1e2);
    let Accuracy {
        operators,
        keys,
        model,
        calibrated,
        transfers,
    } = row.accuracy;
    say(&format!(
        "{}: {operators} operators, {keys} keys, {} time; error, median / 90th percentile: bare \
         model {}, calibrated {}, transfers {}",
        row.model,
        row.clock,
        percent(model),
        percent(calibrated),
        percent(transfers),
    ));
}
