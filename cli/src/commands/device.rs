//! `souk device …`: this machine's processors, and those souk knows by name.

use std::num::NonZeroUsize;

use souk_node::devices::profile::Profile;
use souk_node::devices::{catalogue, discover, measure};

use crate::args::{Device, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;

/// Runs a command on processors.
pub fn run(output: Output, command: &Device) -> Outcome {
    match command {
        Device::List => list(output),
        Device::Show { name } => show_one(output, name)?,
        Device::Bench { threads, quick: _ } => bench(output, *threads),
    }
    Ok(())
}

fn list(output: Output) {
    let cpu = discover::cpu();
    match output {
        Output::Json => {
            show::json(&serde_json::json!({ "cpu": cpu, "catalogue": catalogue::all() }));
        }
        Output::Text => {
            show::say(&format!(
                "this machine: cpu, {}, {} threads",
                cpu.model, cpu.threads
            ));
            show::say("known by name, and emulated when a provider sells them:");
            show::device::print_list(catalogue::all());
        }
    }
}

fn show_one(output: Output, name: &str) -> Outcome {
    if name == "cpu" {
        let cpu = discover::cpu();
        show::json(&cpu);
        return Ok(());
    }
    let found: Option<&Profile> = catalogue::find(name);
    let profile = found.ok_or_else(|| {
        let cause = format!("no processor is called \"{name}\"");
        Failure::new(Kind::Input, cause, "`souk device list` shows the names")
    })?;
    match output {
        Output::Json => show::json(profile),
        Output::Text => show::device::print(profile),
    }
    Ok(())
}

fn bench(output: Output, threads: u32) {
    let description = discover::cpu();
    let wanted = NonZeroUsize::new(threads as usize).unwrap_or(description.threads);
    let measured = measure::cpu(&description, wanted.min(description.threads));
    match output {
        Output::Json => {
            show::json(&serde_json::json!({ "cpu": description, "measured": measured }));
        }
        Output::Text => show::device::print(&measure::profile(&description, &measured)),
    }
}
