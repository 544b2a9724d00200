//! `souk testnet sim --providers N` and `--growth N,N`: simulates a market with a crowd of
//! providers and buyers, whose devices come from the catalogue, and prints figures such as the
//! start times of leases.

mod picture;

use std::time::Instant;

use souk_folder::config::DeviceChoice;
use souk_folder::limits::ProviderLimits;
use souk_market::Price;
use souk_sandbox::device::stated_resources;
use souk_sim::crowd::{CrowdConfig, CrowdReport, DeviceModel, run};
use souk_vocabulary::catalogue;

use crate::args::CrowdArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, Table, print_line};

/// The fewest providers of a model in the mean: a small crowd sells fewer models.
const PER_MODEL: usize = 20;

/// Micro-credits of a device-second for any device, for each tera-operation per second, and for
/// each GiB of memory.
const PRICE_BASE: u64 = 50;
const PRICE_PER_TERA: u64 = 4;
const PRICE_PER_GIB: u64 = 2;

/// The price at which a device model is half as common as a free one would be, because cheap
/// devices are more common than expensive ones.
const COMMON_PRICE: u64 = 400;

/// The shortest and the longest run, in hours.
const HOURS_MIN: f64 = 0.1;
const HOURS_MAX: f64 = 168.0;

/// A simulated crowd and what the simulation cost.
struct Played {
    report: CrowdReport,
    seconds: f64,
    memory_bytes: Option<u64>,
}

/// Simulates one crowd, or each of `--growth`.
pub fn run_crowds(output: Output, seed: u64, args: &CrowdArgs) -> Outcome {
    let sizes = match args.providers {
        Some(providers) => vec![providers],
        None => args.growth.clone(),
    };
    if sizes.contains(&0) || !(HOURS_MIN..=HOURS_MAX).contains(&args.hours) {
        let cause = "a crowd has a provider, and lasts 0.1 to 168 hours".to_owned();
        return Err(Failure::new(Kind::Input, cause, "give other numbers"));
    }
    let mut all = Vec::new();
    for providers in sizes {
        let played = play_crowd(seed, providers, args);
        match output {
            Output::Json => show::print_json(&played.report),
            Output::Text if args.providers.is_some() => print_report(&played),
            Output::Text => print_line(&cost_line(&played)),
        }
        if let Some(breach) = &played.report.breach {
            let cause = format!("the crowd of {providers} breaks a promise: {breach}");
            let again = format!("souk testnet sim --providers {providers} --seed {seed}");
            return Err(Failure::new(Kind::Verification, cause, again));
        }
        all.push(played);
    }
    if args.providers.is_none() && matches!(output, Output::Text) {
        print_growth(&all);
    }
    match &args.picture {
        None => Ok(()),
        Some(path) => std::fs::write(path, picture::draw_growth(&all)).map_err(|error| {
            let cause = format!("{} could not be written: {error}", path.display());
            Failure::new(Kind::Input, cause, "give another -o FILE")
        }),
    }
}

fn play_crowd(seed: u64, providers: u32, args: &CrowdArgs) -> Played {
    let providers = providers as usize;
    let buyers = args.buyers.map_or(providers.div_ceil(10), |it| it as usize);
    let config = CrowdConfig {
        seed,
        providers,
        buyers,
        minutes: (args.hours * 60.0) as u64,
        churn_us: u64::try_from(args.churn.as_micros()).unwrap_or(u64::MAX),
        liars_permille: args.liars,
        replicas: args.replicas as usize,
        models: catalogue_models(providers),
    };
    let began = Instant::now();
    let report = run(&config);
    Played {
        report,
        seconds: began.elapsed().as_secs_f64(),
        memory_bytes: peak_memory(),
    }
}

/// Returns the devices of the catalogue, of which a small crowd has the most common ones.
fn catalogue_models(providers: usize) -> Vec<DeviceModel> {
    let limits = ProviderLimits::default();
    let model = |profile: &souk_vocabulary::profile::Profile| {
        let choice = DeviceChoice::new_emulated(&profile.name);
        let resources = stated_resources(&choice, profile, &limits);
        let tera = resources.throughput.0.iter().max().unwrap_or(&0) / 1_000_000;
        let gib = resources.memory_bytes >> 30;
        let price = PRICE_BASE + tera * PRICE_PER_TERA + gib * PRICE_PER_GIB;
        DeviceModel {
            resources,
            share: 1 + 100 * COMMON_PRICE / (COMMON_PRICE + price),
            price: Price(price),
        }
    };
    let mut models: Vec<DeviceModel> = catalogue::all_processors().iter().map(model).collect();
    models.sort_by_key(|model| std::cmp::Reverse(model.share));
    models.truncate((providers / PER_MODEL).max(1));
    models
}

/// Returns the most memory that this process has had, where the system states it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1_024)
}

fn cost_line(played: &Played) -> String {
    let report = &played.report;
    let memory = played.memory_bytes.map_or_else(String::new, |bytes| {
        format!(", {:.2} GB", bytes as f64 / 1e9)
    });
    format!(
        "{} providers, {} buyers: {:.1} h in {:.1} min of one core{memory}",
        report.providers,
        report.buyers,
        report.minutes as f64 / 60.0,
        played.seconds / 60.0,
    )
}

fn print_report(played: &Played) {
    let report = &played.report;
    print_line(&cost_line(played));
    print_line(&format!(
        "leases {} · placed within 5 s {:.1} % · start p50 {:.2} s p99 {:.1} s · busy {:.1} % \
         (ideal {:.1} %)",
        report.leases,
        report.placed_at_once_percent,
        report.start_p50_s,
        report.start_p99_s,
        report.busy_percent,
        report.ideal_percent,
    ));
    print_line(&format!(
        "idle provider {:.3} questions/s, {:.2} kB/s · validator {:.3} cores · log {:.3} MB/s · \
         ghosts met {:.1} % · wrong {}",
        report.idle_questions_s,
        report.idle_bytes_s / 1e3,
        report.validator_cores,
        report.log_bytes_s / 1e6,
        report.ghosts_met_percent,
        report.wrong,
    ));
    print_line(&format!(
        "taken by another {:.1} % · longest queue {:.1} ms · equal providers' shares {:.1} times \
         apart in the median group, {:.1} in the worst · prices of a model {:.1} % apart",
        report.taken_by_another_percent,
        report.queue_ms_max,
        report.fairness_median,
        report.fairness_worst,
        report.price_range_percent,
    ));
    let kinds = report.questions.iter();
    let mut table = Table::new(&["question", ">number", ">bytes each"]);
    for (kind, (number, bytes)) in kinds {
        let each = bytes / (*number).max(1);
        table.add_row(vec![kind.clone(), number.to_string(), each.to_string()]);
    }
    table.print();
    print_line(&format!("digest {}", report.digest));
}

fn print_growth(all: &[Played]) {
    let mut header = vec!["a crowd of".to_owned()];
    header.extend(all.iter().map(|it| format!(">{}", it.report.providers)));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(&header);
    for (name, figure) in picture::FIGURES {
        let mut row = vec![(*name).to_owned()];
        row.extend(all.iter().map(|it| picture::format_figure(figure(it))));
        table.add_row(row);
    }
    table.print();
}
