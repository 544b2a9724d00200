//! Runs a folder of operator tests on the CPU backend and prints the counts.

use std::num::NonZeroUsize;
use std::path::Path;

use souk_devices::cpu::Cpu;
use souk_devices::{catalogue, conformance};

fn main() {
    let dir = std::env::args().nth(1).expect("a folder of cases");
    let profile = catalogue::find("amd-epyc-9654")
        .expect("it is in the catalogue")
        .clone();
    let cpu = Cpu::new(profile, NonZeroUsize::MIN);
    let report = conformance::run_dir(Path::new(&dir), &cpu).expect("cases");
    for (name, found) in &report.wrong {
        println!("wrong {name}: {found}");
    }
    for (name, reason) in &report.unsupported {
        println!("unsupported {name}: {reason}");
    }
    println!("by rounding {:?}", report.pass_by_rounding);
    let counts = (
        report.pass.len(),
        report.unsupported.len(),
        report.wrong.len(),
    );
    println!(
        "pass {} unsupported {} wrong {}",
        counts.0, counts.1, counts.2
    );
}
