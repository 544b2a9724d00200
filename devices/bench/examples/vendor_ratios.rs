//! Compares the speed of a card with that of its maker's library and copies: `vendor_ratios
//! [CARD]`, with the feature `cuda`. It prints both rates of each operation, their ratio, and
//! whether the ratio reaches the promised minimum. It exits with 1 if one does not, and with 2 if
//! nothing could be timed.

use std::process::ExitCode;

use souk_devices_bench::ratios::{Extents, measure_ratios};

fn main() -> ExitCode {
    let card = std::env::args().nth(1).map_or(Ok(0), |card| card.parse());
    let Ok(card) = card else {
        eprintln!("vendor_ratios [CARD]: the number of a card, from 0");
        return ExitCode::from(2);
    };
    let ratios = match measure_ratios(card, &Extents::default()) {
        Ok(ratios) => ratios,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    println!(
        "{:<28} {:>12} {:>12} {:>6} {:>6}",
        "", "ours /s", "maker's /s", "ratio", "least"
    );
    for ratio in &ratios {
        let verdict = if ratio.is_met() { "" } else { "  below" };
        println!(
            "{:<28} {:>12.3e} {:>12.3e} {:>6.2} {:>6.2}{verdict}",
            ratio.name,
            ratio.ours,
            ratio.makers,
            ratio.rate_fraction(),
            ratio.part_min
        );
    }
    match ratios.iter().all(|ratio| ratio.is_met()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    }
}
