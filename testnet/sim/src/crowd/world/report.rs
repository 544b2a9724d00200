//! Computes the report of a crowd's run: jobs and leases, waiting times, use of devices, prices and
//! fairness, the load of validators, and the promises that were broken.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Crowd;
use super::seller::Misconduct;
use crate::crowd::counts::{ideal_work_us, permille_of};

/// A job is placed at once if its first lease comes within this time, in microseconds.
const AT_ONCE_US: u64 = 5_000_000;

/// How long a job waits for a device; the omniscient scheduler grants it no more.
const WAIT_US: u64 = 60_000_000;

/// The fewest devices that are alike for their shares to be compared.
const ALIKE_MIN: usize = 4;

/// The report of a crowd's run.
#[derive(Clone, Debug, Serialize)]
pub struct CrowdReport {
    /// The configuration: seed, providers, buyers, minutes and validators.
    pub seed: u64,
    /// The number of providers.
    pub providers: usize,
    /// The number of buyers.
    pub buyers: usize,
    /// The virtual minutes of demand.
    pub minutes: u64,
    /// The number of validators.
    pub replicas: usize,
    /// Jobs that began, and those that ended done.
    pub jobs: u64,
    /// Jobs that ended with their answer.
    pub jobs_done: u64,
    /// Leases that were sold.
    pub leases: u64,
    /// Jobs whose first lease came within five seconds, in per cent of all.
    pub placed_at_once_percent: f64,
    /// From a job's arrival to its first run: the median, in seconds.
    pub start_p50_s: f64,
    /// The same time that one in a hundred exceeds.
    pub start_p99_s: f64,
    /// Device time of finished work, in per cent of the device time that was there.
    pub busy_percent: f64,
    /// The same per cent for an omniscient scheduler with the same demand.
    pub ideal_percent: f64,
    /// Questions per second of a present provider.
    pub provider_questions_s: f64,
    /// Bytes per second between a present provider and validators, in both directions.
    pub provider_bytes_s: f64,
    /// Questions a second of a provider whose device is not sold.
    pub idle_questions_s: f64,
    /// Bytes a second of such a provider.
    pub idle_bytes_s: f64,
    /// Processor cores of the busiest validator.
    pub validator_cores: f64,
    /// The longest wait in a validator's queue, in milliseconds.
    pub queue_ms_max: f64,
    /// Bytes a second of the log.
    pub log_bytes_s: f64,
    /// Commands a second of the log.
    pub commands_s: f64,
    /// Starts that found no provider, in per cent of all leases.
    pub ghosts_met_percent: f64,
    /// Bids that another buyer was faster than, in per cent of all bids.
    pub taken_by_another_percent: f64,
    /// Receipts by which a buyer paid for more than was worked.
    pub wrong: u64,
    /// The greatest share of device time sold, over the least, among honest providers of one model
    /// and price: the worst of all groups, and the median group.
    pub fairness_worst: f64,
    /// The same of the median group.
    pub fairness_median: f64,
    /// The range of prices paid for one model, in per cent of the least: the widest of all models.
    pub price_range_percent: f64,
    /// Messages on the streams of leases.
    pub lease_messages: u64,
    /// Events of the simulator, and steps of both kinds of cores.
    pub events: u64,
    /// Steps of providers' cores.
    pub provider_steps: u64,
    /// Steps of jobs' cores.
    pub job_steps: u64,
    /// Asks in the book when demand ended.
    pub asks_at_end: u64,
    /// Other counts by name.
    pub counts: BTreeMap<String, u64>,
    /// Questions to validators by kind, each with the bytes in both directions.
    pub questions: BTreeMap<String, (u64, u64)>,
    /// The hash of the market's state, the memory of all cores, and this report.
    pub digest: String,
    /// The first broken promise.
    pub breach: Option<String>,
}

impl CrowdReport {
    /// Sums up a run, and checks the promises that must hold at its end.
    pub(in crate::crowd) fn from_world(world: &mut Crowd) -> Self {
        check_rest(world);
        let presence = Presence::of_world(world);
        let traffic = world.traffic.take().unwrap_or_else(|| world.sum_traffic());
        let fairness = fairness_ratios(world);
        let (config, counts) = (&world.config, &mut world.counts);
        let seconds = config.end_us() as f64 / 1e6;
        let present = presence.total_us as f64 / 1e6;
        let sold = world.ledger.sold_us.iter().sum::<u64>() as f64 / 1e6;
        let idle = (present - sold).max(1.0);
        let jobs = world.jobs.added();
        let at_once = counts.placed_us.iter().filter(|us| **us <= AT_ONCE_US);
        let at_once = at_once.count() as u64;
        let leases = world.ledger.leases;
        let ideal = ideal_work_us(&counts.demands, &presence.devices, WAIT_US, config.end_us());
        let mut report = Self {
            seed: config.seed,
            providers: config.providers,
            buyers: config.buyers,
            minutes: config.minutes,
            replicas: config.replicas,
            jobs,
            jobs_done: counts.jobs_done,
            leases,
            placed_at_once_percent: percent(at_once, jobs),
            start_p50_s: permille_of(&mut counts.started_us, 500) as f64 / 1e6,
            start_p99_s: permille_of(&mut counts.started_us, 990) as f64 / 1e6,
            busy_percent: percent(counts.worked_us, presence.total_us),
            ideal_percent: percent(ideal, presence.total_us),
            provider_questions_s: traffic.questions as f64 / present.max(1.0),
            provider_bytes_s: traffic.bytes as f64 / present.max(1.0),
            idle_questions_s: traffic.idle_questions as f64 / idle,
            idle_bytes_s: traffic.idle_bytes as f64 / idle,
            validator_cores: traffic.validator_us as f64 / 1e6 / seconds,
            queue_ms_max: world.validators.wait_us_max as f64 / 1e3,
            log_bytes_s: traffic.log_bytes as f64 / seconds,
            commands_s: traffic.commands as f64 / seconds,
            ghosts_met_percent: percent(counts.ghosts_met, leases),
            taken_by_another_percent: percent(
                counts.taken_by_another,
                leases + counts.taken_by_another,
            ),
            wrong: world.ledger.wrong,
            fairness_worst: fairness.last().copied().unwrap_or(1.0),
            fairness_median: fairness.get(fairness.len() / 2).copied().unwrap_or(1.0),
            price_range_percent: price_range(world),
            lease_messages: traffic.lease_messages,
            events: world.counts.events,
            provider_steps: world.counts.provider_steps,
            job_steps: world.counts.job_steps,
            asks_at_end: traffic.asks,
            counts: other_counts(world),
            questions: traffic
                .by_kind
                .iter()
                .map(|(kind, sums)| ((*kind).to_owned(), *sums))
                .collect(),
            digest: String::new(),
            breach: world.ledger.breach().cloned(),
        };
        let text = serde_json::to_vec(&report).expect("plain data in memory always encodes");
        let mut hasher = world.cores.clone();
        hasher.update(&world.validators.digest()).update(&text);
        report.digest = hasher.finalize().to_hex().to_string();
        report
    }
}

/// Checks that no job or lease is still open at the end.
fn check_rest(world: &mut Crowd) {
    let (leases, jobs) = (world.ledger.open_count(), world.jobs.len());
    if leases + jobs > 0 {
        let what = format!("{leases} leases and {jobs} jobs are open long after their work");
        world.ledger.record_breach(what);
    }
}

/// The number of devices that were present in a run.
struct Presence {
    total_us: u64,
    /// The mean number of each model, at least one if there is any.
    devices: Vec<u64>,
}

impl Presence {
    fn of_world(world: &mut Crowd) -> Self {
        let end = world.config.end_us();
        let mut by_model = vec![0; world.config.models.len()];
        for seller in &mut world.sellers {
            if seller.core.is_some() {
                seller.present_us += end.saturating_sub(seller.came_at);
            }
            by_model[seller.model] += seller.present_us.min(end);
        }
        let mean = |sum: &u64| (sum + end / 2) / end.max(1);
        Self {
            total_us: by_model.iter().sum(),
            devices: by_model.iter().map(mean).collect(),
        }
    }
}

/// Returns a ratio for each group of alike honest providers that were present for at least half of
/// the run, in rising order: the greatest sold share of their time, divided by the least.
fn fairness_ratios(world: &Crowd) -> Vec<f64> {
    let half = world.config.end_us() / 2;
    let mut groups = BTreeMap::<_, Vec<f64>>::new();
    for (number, seller) in world.sellers.iter().enumerate() {
        if seller.misconduct == Misconduct::None && seller.present_us >= half {
            let share = world.ledger.sold_us[number] as f64 / seller.present_us as f64;
            let group = groups.entry((seller.model, seller.price)).or_default();
            group.push(share);
        }
    }
    let ratio = |shares: &Vec<f64>| {
        let most = shares.iter().copied().fold(0.0, f64::max);
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        most / least.max(1e-9)
    };
    let groups = groups.values().filter(|shares| shares.len() >= ALIKE_MIN);
    let mut ratios: Vec<f64> = groups.map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Returns the widest range of prices paid for one model, in per cent of the least.
fn price_range(world: &Crowd) -> f64 {
    let ranges = world.ledger.prices.iter().filter_map(|prices| {
        let (least, most) = (prices.first_key_value()?.0, prices.last_key_value()?.0);
        Some(percent(most.0 - least.0, least.0))
    });
    ranges.fold(0.0, f64::max)
}

fn other_counts(world: &Crowd) -> BTreeMap<String, u64> {
    let counts = &world.counts;
    let plain = [
        ("sessions", counts.sessions),
        ("plans", counts.plans),
        ("plans_without_ask", counts.plans_without),
        ("bids_taken_by_another", counts.taken_by_another),
        ("ghosts_met", counts.ghosts_met),
        ("jobs_retried", counts.retries),
        ("bills_refused", counts.refused),
        ("runs_overbilled", counts.overbilled),
        ("noted_beyond_work", counts.noted_beyond_work),
        ("liars_paid_by_notes", counts.liars_paid_by_notes),
        ("questions_stopped", counts.questions_stopped),
        ("busy", counts.busy),
    ];
    let named = |group: &str, sums: &BTreeMap<String, u64>| {
        let name = |(reason, count): (&String, &u64)| (format!("{group}_{reason}"), *count);
        sums.iter().map(name).collect::<Vec<_>>()
    };
    let plain = plain
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count));
    plain
        .chain(named("failed", &counts.failures))
        .chain(named("closed", &counts.closed))
        .chain(named("refused", &counts.refusals))
        .collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 * 100.0 / whole as f64,
    }
}
