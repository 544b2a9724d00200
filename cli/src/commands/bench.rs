//! `souk bench …`: measurements of souk itself, one for each command.

mod consensus;
mod cost;
mod machine;
mod market;
mod memory;
mod models;
mod planning;
mod readers;
mod submit;
mod tasks;
mod tensors;

use std::path::Path;

use souk_devices_bench::conformance::{self, Report};
use souk_vocabulary::processor::Processor;

use crate::args::{Bench, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Runs a measurement.
pub async fn run(folder: &Path, output: Output, command: &Bench) -> Outcome {
    match command {
        Bench::Conformance {
            folder,
            backend,
            device,
        } => {
            let device = super::device::open(*backend, device, 0)?;
            run_conformance(output, folder, &*device)
        }
        Bench::Models(args) => models::run(output, args),
        Bench::Memory(args) => memory::run(output, args),
        Bench::Cost(args) => cost::run(output, args),
        Bench::Market(args) if args.readers > 0 => readers::run(output, args).await,
        Bench::Market(args) => {
            market::run(output, args.flow, args.operations);
            Ok(())
        }
        Bench::Plan {
            file,
            planner,
            budget_ms,
            out,
        } => planning::plan(output, file, planner, *budget_ms, out),
        Bench::Partition { file, out } => planning::partition(output, file, out),
        Bench::Tasks { devices } => tasks::run(output, usize::from(*devices)),
        Bench::Serve => tasks::serve(),
        Bench::Split { machine, pairs } => machine::split(output, machine, pairs),
        Bench::Mixes { machine, model } => machine::mixes(output, machine, model),
        Bench::Overhead {
            model,
            threads,
            rounds,
        } => machine::overhead(output, model, *threads, *rounds).await,
        Bench::Tensors(args) => tensors::run(output, args).await,
        Bench::TensorHolder(args) => tensors::hold(args).await,
        Bench::Submit(args) => submit::run(output, args).await,
        Bench::Consensus(args) => consensus::run(output, args).await,
        Bench::Node(args) => consensus::node(folder, args).await,
    }
}

fn run_conformance(output: Output, folder: &Path, device: &dyn Processor) -> Outcome {
    let report = conformance::run_dir(folder, device).map_err(|error| {
        Failure::new(
            Kind::Input,
            error,
            "give a folder of cases, each with a meta.json",
        )
    })?;
    match output {
        Output::Json => show::json(&report),
        Output::Text => print(&report),
    }
    if report.wrong.is_empty() {
        return Ok(());
    }
    let cause = format!("{} operator tests gave wrong results", report.wrong.len());
    Err(Failure::new(
        Kind::Verification,
        cause,
        "they are named above",
    ))
}

fn print(report: &Report) {
    say(&format!(
        "{} pass ({} by rounding), {} drawn at random, {} unsupported, {} wrong",
        report.pass.len(),
        report.pass_by_rounding.len(),
        report.drawn.len(),
        report.unsupported.len(),
        report.wrong.len(),
    ));
    for (name, found) in &report.wrong {
        say(&format!("  wrong: {name}: {found}"));
    }
}
