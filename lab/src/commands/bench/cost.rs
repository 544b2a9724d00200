//! `souk bench cost`: measures how well the cost model predicts the time of the largest operators
//! of models on this machine's CPU.

use std::time::{Duration, Instant};

use serde::Serialize;
use souk_cpu::Cpu;
use souk_devices_bench::accuracy::{self, Accuracy, Errors};
use souk_devices_bench::models;
use souk_host::{clock, discover};
use souk_registry::measure;
use souk_vocabulary::processor::Processor;

use super::models::{model_failure, parse_model_spec};
use crate::args::CostArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// The figures of one model.
#[derive(Serialize)]
struct CostRow<'a> {
    model: &'a str,
    threads: usize,
    /// The measured clock: `processor` time with one thread, else `wall` time.
    clock: &'static str,
    #[serde(flatten)]
    accuracy: Accuracy,
}

/// Measures the CPU, then each model's operators.
pub fn run(output: Output, args: &CostArgs) -> Outcome {
    let (args, each) = (&args.set, args.each);
    let description = discover::describe_cpu();
    let measured = measure::measure_cpu(&description, args.threads);
    let cpu = Cpu::new(measure::cpu_profile(&description, &measured), args.threads);
    let begin = Instant::now();
    let wall = || begin.elapsed();
    let (clock, name): (&dyn Fn() -> Duration, _) = match args.threads.get() {
        1 if cfg!(unix) => (&clock::of_process, "processor"),
        _ => (&wall, "wall"),
    };
    for model in &args.models {
        let (path, sizes) = parse_model_spec(model)?;
        let subgraph = models::open_model(&path).map_err(|error| model_failure(&error))?;
        let program = cpu.compile(&subgraph);
        let program = program.map_err(|error| bench_failure(model, &error))?;
        let inputs = models::generate_inputs(&path, program.inputs(), &sizes);
        let inputs = inputs.map_err(|error| model_failure(&error))?;
        let found = accuracy::measure_accuracy(&cpu, &subgraph, &inputs, args.operators, clock);
        let mut accuracy = found.map_err(|error| bench_failure(model, &error))?;
        if !each {
            accuracy.each.clear();
        }
        let row = CostRow {
            model,
            threads: args.threads.get(),
            clock: name,
            accuracy,
        };
        match output {
            Output::Json => show::print_json(&row),
            Output::Text => print_cost_row(&row),
        }
    }
    Ok(())
}

fn bench_failure(model: &str, cause: &dyn std::fmt::Display) -> Failure {
    let fix = "run `souk bench models` on it by itself";
    Failure::new(Kind::Input, format!("{model}: {cause}"), fix)
}

fn print_cost_row(row: &CostRow<'_>) {
    let found = &row.accuracy;
    for each in &found.each {
        let micros = |seconds: f64| seconds * 1e6;
        print_line(&format!(
            "{:9.1} us predicted, {:9.1} us measured, {:9.1} us by the bare model, batch {}: {}",
            micros(each.foretold),
            micros(each.measured),
            micros(each.modelled),
            each.batch,
            each.what,
        ));
    }
    print_line(&format!(
        "{}: {} operators, {} of them different, {} keys; {} time; error, median / 90th \
         percentile:",
        row.model, found.operators, found.different, found.keys, row.clock,
    ));
    let lines = [
        ("bare model", found.model),
        ("calibrated", found.calibrated),
        ("  at a batch never seen", found.unseen_batch),
        ("  operators never seen", found.unseen_operator),
        ("  noise of the clock", found.noise),
        ("transfers", found.transfers),
        ("  of sizes never seen", found.transfers_unseen),
    ];
    for (what, Errors { count, median, p90 }) in lines {
        let (median, p90) = (median * 1e2, p90 * 1e2);
        print_line(&format!(
            "  {what:24} {median:5.1} % / {p90:5.1} %  of {count}"
        ));
    }
}
