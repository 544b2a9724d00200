//! Carries out `souk bench …`: each subcommand measures one part of souk. `conformance` (ONNX's
//! operator tests) and `choose` are in this file, the others in submodules.

mod certificates;
mod consensus;
mod cost;
mod leases;
mod machine;
mod market;
mod memory;
mod models;
mod planning;
mod proofs;
mod readers;
mod submit;
mod tasks;
mod tensors;
mod tokens;

use std::path::Path;

use souk_devices_bench::conformance::{self, Report};
use souk_vocabulary::processor::Processor;

use crate::args::Bench;
use crate::choose_bench::{ChooseReport, measure_choose};
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, Table, print_line};

/// Runs a measurement.
pub async fn run(folder: &Path, output: Output, command: &Bench) -> Outcome {
    match command {
        Bench::Conformance {
            folder,
            backend,
            device,
        } => {
            let device = souk_cli::commands::device::open_device(*backend, device, 0)?;
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
        } => planning::plan_instances(output, file, planner, *budget_ms, out),
        Bench::Partition { file, out } => planning::partition_graphs(output, file, out),
        Bench::Tasks { devices } => tasks::run(output, usize::from(*devices)),
        Bench::Split { machine, pairs } => machine::measure_splits(output, machine, pairs),
        Bench::Mixes { machine, model } => machine::measure_mixes(output, machine, model),
        Bench::Overhead {
            model,
            threads,
            rounds,
        } => machine::measure_overhead(output, model, *threads, *rounds).await,
        Bench::Tensors(args) => tensors::run(output, args).await,
        Bench::TensorHolder(args) => tensors::hold_content(args).await,
        Bench::Leases(args) => leases::run(output, args).await,
        Bench::Certificates(args) => certificates::run(output, args).await,
        Bench::Proofs(args) => {
            proofs::run(output, args);
            Ok(())
        }
        Bench::Submit(args) => submit::run(output, args).await,
        Bench::Choose { asks } => {
            print_choose(output, asks);
            Ok(())
        }
        Bench::Tokens(args) => tokens::run(output, args).await,
        Bench::Consensus(args) => consensus::run(output, args).await,
        Bench::Node(args) => consensus::run_replica(folder, args).await,
    }
}

fn print_choose(output: Output, asks: &[u32]) {
    let reports: Vec<ChooseReport> = asks.iter().map(|asks| measure_choose(*asks)).collect();
    match output {
        Output::Json => show::print_json(&reports),
        Output::Text => {
            let mut table = Table::new(&[">asks", ">chosen", ">ms (median)"]);
            for report in reports {
                let ms = format!("{:.3}", report.median.as_secs_f64() * 1e3);
                table.add_row([report.asks.to_string(), report.chosen.to_string(), ms]);
            }
            table.print();
        }
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
        Output::Json => show::print_json(&report),
        Output::Text => print_conformance(&report),
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

fn print_conformance(report: &Report) {
    print_line(&format!(
        "{} pass ({} by rounding), {} drawn at random, {} unsupported, {} wrong",
        report.pass.len(),
        report.pass_by_rounding.len(),
        report.drawn.len(),
        report.unsupported.len(),
        report.wrong.len(),
    ));
    for (name, found) in &report.wrong {
        print_line(&format!("  wrong: {name}: {found}"));
    }
}
