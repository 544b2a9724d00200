//! `souk bench tasks` without the rest of souk: prints the executor's cost for each task as JSON.

use std::num::NonZeroUsize;
use std::process::Command;

use souk_cpu::Cpu;
use souk_host::discover;
use souk_registry::measure;
use souk_scheduler_bench::subprocess::{SubprocessDevice, serve_parent};
use souk_scheduler_bench::{measure_subprocess, measure_tasks};

fn main() {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        let (description, one) = (discover::describe_cpu(), NonZeroUsize::MIN);
        let measured = measure::measure_cpu(&description, one);
        let cpu = Cpu::new(measure::cpu_profile(&description, &measured), one);
        serve_parent(&cpu, std::io::stdin(), std::io::stdout()).expect("the parent speaks frames");
        return;
    }
    let mut report = measure_tasks(2).expect("two threads can be started");
    let mut child = Command::new(std::env::current_exe().expect("this runs from a file"));
    child.arg("serve");
    let device = SubprocessDevice::start(child).expect("the child serves");
    report.processes = Some(measure_subprocess(&device).expect("every run ends"));
    let text = serde_json::to_string_pretty(&report).expect("figures are JSON");
    println!("{text}");
}
