//! `souk bench split`, `mixes` and `overhead`: measures how well the scheduler uses different
//! devices together, those of this machine and emulated ones. `split` divides single operators
//! between two devices, `mixes` runs whole models on several, and `overhead` measures the
//! scheduler's own cost.

use std::path::Path;
use std::sync::Arc;

use souk_folder::config::DeviceChoice;
use souk_node::scheduler::execution::GroupDevice;
use souk_sandbox::device;
use souk_scheduler_bench::{self as bench, MeasureError, Mix, Pair, Workload};
use souk_vocabulary::processor::Processor;

use crate::args::{MachineArgs, ModelArgs};
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::{Backend, Output};
use souk_cli::show::{self, print_line};

/// Shares single operators between pairs of devices: the named pairs, or all if none is named.
pub fn measure_splits(output: Output, args: &MachineArgs, named: &[String]) -> Outcome {
    let mut pairs = Vec::new();
    if let Some(members) = real_devices(args)? {
        let name = "this machine".to_owned();
        pairs.push(Pair { name, members });
    }
    if !args.real_only {
        pairs.extend(bench::emulated_pairs());
    }
    let pairs = select_pairs(pairs, named)?;
    // This can take minutes on a slow device, so it reports each step.
    let rows =
        bench::measure_sharing(&pairs, &mut |step| eprintln!("{step}")).map_err(bench_failure)?;
    if output == Output::Json {
        show::print_json(&rows);
        return Ok(());
    }
    for row in &rows {
        print_line(&format!(
            "{}, {}: alone {:.3} ms ({}), {} {:.3} ms at {:.1} %, best of {} shares {:.3} ms at \
             {:.1} %: {:.3} x the best, {:.0} % saved",
            row.pair,
            row.operator,
            row.single_ms,
            row.single,
            if row.shared { "shared" } else { "not shared" },
            row.chosen_ms,
            row.chosen_part * 100.0,
            row.tried,
            row.best_ms,
            row.best_part * 100.0,
            row.to_best,
            row.gain * 100.0,
        ));
    }
    Ok(())
}

/// Returns the named pairs in the order of measurement. Each name must be that of a known pair.
fn select_pairs(mut pairs: Vec<Pair>, named: &[String]) -> Result<Vec<Pair>, Failure> {
    let known = |name: &String| pairs.iter().any(|pair| pair.name == *name);
    if let Some(unknown) = named.iter().find(|name| !known(name)) {
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name.as_str()).collect();
        return Err(Failure::new(
            Kind::Input,
            format!("there is no pair \"{unknown}\""),
            format!("--pair takes one of: {}", names.join(", ")),
        ));
    }
    pairs.retain(|pair| named.is_empty() || named.contains(&pair.name));
    Ok(pairs)
}

/// Runs models on mixes of devices.
pub fn measure_mixes(output: Output, machine: &MachineArgs, model: &ModelArgs) -> Outcome {
    let mut mixes = Vec::new();
    if let Some(members) = real_devices(machine)? {
        let name = "this machine".to_owned();
        mixes.push(Mix { name, members });
    }
    if !machine.real_only {
        mixes.extend(bench::emulated_mixes());
    }
    let mut workloads = bench::mix_workloads();
    if let Some(path) = &model.model {
        workloads.push(load_workload(&*open_cpu(1)?, path, &model.sizes)?);
    }
    let rows = bench::measure_mixes(&mixes, &workloads).map_err(bench_failure)?;
    if output == Output::Json {
        show::print_json(&rows);
        return Ok(());
    }
    for row in &rows {
        print_line(&format!(
            "{}, {}: alone {:.3} ms ({}), together {:.3} ms on {} devices ({:.2} x), {:.3} x what \
             the plan expected, {:.3} J",
            row.mix,
            row.workload,
            row.single_ms,
            row.single,
            row.makespan_ms,
            row.devices,
            row.speedup,
            row.to_expected,
            row.joules,
        ));
    }
    Ok(())
}

/// Runs a model directly and through the scheduler.
pub async fn measure_overhead(
    output: Output,
    model: &ModelArgs,
    threads: u32,
    rounds: usize,
) -> Outcome {
    let path = model.model.as_ref().ok_or_else(|| {
        Failure::new(
            Kind::Input,
            "no model was given",
            "give one with --model FILE",
        )
    })?;
    let cpu = open_cpu(threads)?;
    let workload = load_workload(&*cpu, path, &model.sizes)?;
    let row = bench::measure_overhead(&cpu, &workload, rounds.max(1)).map_err(bench_failure)?;
    let freed = measure_release(workload, threads, rounds.max(1)).await?;
    if output == Output::Json {
        let row = serde_json::to_value(&row).expect("a row has only named fields");
        show::print_json(&show::with(row, [("cell_ended_in_the_middle", freed)]));
        return Ok(());
    }
    print_line(&format!(
        "{}, {} runs each: bare {:.3} ms (median {:.3}), scheduled {:.3} ms (median {:.3}): \
         {:+.2} % (medians {:+.2} %, run by run {:+.2} %)",
        row.workload,
        row.rounds,
        row.bare_ms[0],
        row.bare_ms[1],
        row.scheduled_ms[0],
        row.scheduled_ms[1],
        row.overhead[0] * 100.0,
        row.overhead[1] * 100.0,
        row.paired_overhead * 100.0,
    ));
    print_line(&format!(
        "  by processor time: bare {:.3} ms, scheduled {:.3} (run by run {:+.2} %)",
        row.cpu_ms[0],
        row.cpu_ms[1],
        row.paired_cpu_overhead * 100.0,
    ));
    let [half, most, longest] = row.cancelling.answered_ms;
    print_line(&format!(
        "  cancelled in the middle, {} runs: answered within {half:.3} ms (half), {most:.3} (99 of \
         100), {longest:.3} at most",
        row.cancelling.runs,
    ));
    print_freed(&freed);
    Ok(())
}

fn print_freed(freed: &serde_json::Value) {
    let ms = |place: usize| freed["freed_ms"][place].as_f64().unwrap_or_default();
    print_line(&format!(
        "  a lease's process ended in the middle, {} runs: gone within {:.3} ms (half), {:.3} (99 \
         of 100), {:.3} at most",
        freed["runs"],
        ms(0),
        ms(1),
        ms(2),
    ));
}

/// Measures how soon the process of a cancelled lease is gone.
#[cfg(target_os = "linux")]
async fn measure_release(
    workload: Workload,
    threads: u32,
    rounds: usize,
) -> Result<serde_json::Value, Failure> {
    use souk_sandbox::leaving;

    let home = souk_cli::folder::create_temp_folder("souk-sandboxes-")?;
    let setting = leaving::ReleaseSetup {
        program: souk_cli::program::program_path()?,
        home: home.path(),
        threads,
        model: workload.model,
        inputs: workload.inputs,
        rounds,
    };
    let unexpected = |error| Failure::new(Kind::Unexpected, error, "see what it prints");
    let freed = leaving::measure_release(setting)
        .await
        .map_err(unexpected)?;
    Ok(serde_json::to_value(freed).expect("it has only named fields"))
}

/// Returns null, because this system has no sandboxes.
#[cfg(not(target_os = "linux"))]
async fn measure_release(_: Workload, _: u32, _: usize) -> Result<serde_json::Value, Failure> {
    Ok(serde_json::Value::Null)
}

/// Returns the CPU and the GPU of this machine if the arguments name a GPU.
fn real_devices(args: &MachineArgs) -> Result<Option<Vec<GroupDevice>>, Failure> {
    let Some(name) = &args.gpu else {
        return Ok(None);
    };
    let gpu = souk_cli::commands::device::open_device(Backend::Wgpu, name, 0)?;
    let member = |label: &str, processor| GroupDevice {
        label: label.to_owned(),
        processor,
    };
    let cpu = open_cpu(args.threads)?;
    Ok(Some(vec![member("cpu", cpu), member(name, gpu)]))
}

fn open_cpu(threads: u32) -> Result<Arc<dyn Processor>, Failure> {
    let opened = device::open_devices(&DeviceChoice::Cpu { threads }, None);
    let unopened =
        |cause| Failure::new(Kind::State, cause, "`souk device list` shows what there is");
    let mut devices = opened.map_err(|error| unopened(error.to_string()))?;
    devices
        .pop()
        .ok_or_else(|| unopened("there is no CPU".to_owned()))
}

/// Reads a model from a file and creates inputs of the given sizes.
fn load_workload(cpu: &dyn Processor, path: &Path, sizes: &[usize]) -> Result<Workload, Failure> {
    let input = |cause: String, hint: &'static str| Failure::new(Kind::Input, cause, hint);
    let model = std::fs::read(path).map_err(|error| {
        let cause = format!("cannot read {}: {error}", path.display());
        input(cause, "give an ONNX model with --model")
    })?;
    let name = path
        .file_stem()
        .map(|name| name.to_string_lossy().into_owned());
    Workload::of_model(name.unwrap_or_default(), model.into(), cpu, sizes).map_err(|error| {
        let cause = format!("{}: {error}", path.display());
        input(
            cause,
            "give one size for each open dimension of all inputs with --sizes",
        )
    })
}

fn bench_failure(error: MeasureError) -> Failure {
    Failure::new(Kind::Unexpected, error, "each line above it was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_measured_by_name_and_a_wrong_one_lists_them() {
        let names = |named: &[&str]| -> Result<Vec<String>, Failure> {
            let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
            let pairs = select_pairs(bench::emulated_pairs(), &named)?;
            Ok(pairs.into_iter().map(|pair| pair.name).collect())
        };
        let all = names(&[]).unwrap();
        assert!(all.len() > 2, "{all:?}");
        assert_eq!(names(&["phone"]).unwrap(), ["phone"]);
        assert_eq!(names(&[&all[2], &all[0]]).unwrap(), [&*all[0], &*all[2]]);
        let refused = names(&["phone", "telephone"]).unwrap_err();
        let told = format!("{refused:?}");
        let lists = all.iter().all(|name| told.contains(name));
        assert!(lists && told.contains("telephone"), "{told}");
    }
}
