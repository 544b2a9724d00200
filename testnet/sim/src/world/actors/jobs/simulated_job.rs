//! Describes a job of a simulated buyer: the random properties of the job, and the user's progress
//! with it.
//!
//! The simulator creates a [`SimulatedJob`] when its buyer begins a job, keeps it while the buyer's
//! process restarts, and compares the answers with the model's own values. Everything random comes
//! from the seed's generator, so the order of the draws is part of a seed's meaning.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, Credits, Features, JobId, Millis, Operators, Permille, Regions};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::job::{JobSpec, Limits, attempt_id};
use souk_roles::market::demands::Demands;

use super::planner::{GIVEN, JobShape};
use super::worker::MODEL;
use crate::random::Random;

/// One job, from its begin to its end, over all restarts of its buyer.
pub struct SimulatedJob {
    pub spec: JobSpec,
    pub shape: JobShape,
    /// The input of each request, by its number: the content and its value.
    pub given: Vec<(ContentId, u64)>,
    /// Requests that omit the input, because earlier requests of their sequence feed them.
    pub left_out: BTreeSet<u32>,
    /// The next request that the user sends to the buyer's current process.
    pub next: usize,
    /// The number of requests without an answer.
    pub under_way: usize,
    /// Whether the buyer's current process knows that no request follows.
    pub told_no_more: bool,
    /// How long the user thinks after an answer, and until when, in milliseconds.
    pub pause: u64,
    pub next_at: u64,
    /// The answers that the user has stored, by request.
    pub answers: BTreeMap<u32, Vec<(String, ContentId)>>,
    pub began_at: u64,
    /// Values on the disk, whether a safe fact mentions them or not.
    pub kept: BTreeSet<ContentId>,
    /// The number of processes of the buyer that worked on the job: the first, and one for each
    /// restart.
    pub process_count: u32,
    /// Whether the market refused a command of the job or did not answer it.
    pub has_failed_command: bool,
}

impl SimulatedJob {
    /// Returns the simulated time at which the job began, in milliseconds.
    pub fn began_at(&self) -> u64 {
        self.began_at
    }

    /// Returns the ids under which its attempts can have bought leases, for up to 20 attempts of
    /// each process.
    pub fn attempt_ids(&self) -> Vec<JobId> {
        let last = self.process_count * 20 + 20;
        (0..=last).map(|n| attempt_id(self.spec.job, n)).collect()
    }

    /// Returns the right value of each output of a request, by name, as the simulated model
    /// computes it.
    pub fn expected_values(&self, request: u32) -> Option<BTreeMap<String, u64>> {
        let (_, given) = self.given.get(request as usize)?;
        let value = match self.left_out.contains(&request) {
            true => {
                let before = request.checked_sub(self.spec.sequences)?;
                self.shape.feed_value(&self.expected_values(before)?)?
            }
            false => *given,
        };
        let steps = request.checked_div(self.spec.sequences);
        Some(self.shape.model_values(value, steps.map(u64::from)))
    }

    /// Returns the inputs of a request.
    pub fn request_inputs(&self, request: u32) -> Vec<(String, ContentId)> {
        let (given, _) = self.given[request as usize];
        match self.left_out.contains(&request) {
            true => Vec::new(),
            false => vec![(GIVEN.to_owned(), given)],
        }
    }

    /// Returns the number of answers that the user has stored.
    pub fn answer_count(&self) -> usize {
        self.answers.len()
    }

    /// Returns the total number of requests.
    pub fn request_count(&self) -> usize {
        self.given.len()
    }
}

/// Decides whether the job is a session, and makes a part of `shape` feed the next request if so.
/// Returns the number of sequences, or 0 for no session, and the requests that omit the fed input.
pub fn draw_session(
    shape: &mut JobShape,
    requests: u32,
    random: &mut Random,
) -> (u32, BTreeSet<u32>) {
    if !random.chance(250) {
        return (0, BTreeSet::new());
    }
    let sequences = random.draw_between(1, 3) as u32;
    shape.choose_feed(random);
    // Some sessions never omit inputs, some always do where possible, and others vary.
    let share = [0, 500, 900, 1_000][random.draw_index(4)];
    let later = (sequences..requests).filter(|_| random.chance(share) && shape.is_fed());
    (sequences, later.collect())
}

/// Returns the maximum number of requests in flight, and the user's pause after an answer in
/// milliseconds. A session gets a single copy in `limits`; if its user thinks between requests,
/// `shape` records how long, and `limits` loses the budget, the deadline and spot leases.
pub fn draw_pace(
    shape: &mut JobShape,
    sequences: u32,
    requests: u64,
    limits: &mut Limits,
    random: &mut Random,
) -> (u32, u64) {
    let window = random.draw_between(1, 8) as u32;
    if sequences == 0 {
        return (window, 0);
    }
    limits.copies = 1;
    let pause = shape.add_thinking(requests, limits, random);
    match pause > 0 || random.chance(250) {
        true => (1, pause),
        false => (window, 0),
    }
}

/// Returns the random limits of a job.
pub fn draw_limits(random: &mut Random) -> Limits {
    Limits {
        budget: random
            .chance(300)
            .then(|| Credits(random.draw_between(2_000, 60_000))),
        deadline: random
            .chance(150)
            .then(|| Micros::from_seconds(random.draw_between(2, 30))),
        time_max: Micros::from_seconds(120),
        wait: Micros::from_seconds(random.draw_below(10)),
        providers_min: 1,
        providers_max: random.draw_between(1, 4) as u32,
        excluded: Vec::new(),
        regions: Regions(0),
        reputation_min: Permille(0),
        notice_min: Millis(0),
        copies: random.draw_between(1, 2) as u32,
        spot: random.chance(300),
        priority: random.draw_below(3) as u8,
    }
}

/// Returns a buyer's demands on the asks that its planner can use.
pub fn buyer_demands(buyer: AccountKey, excluded: &[AccountKey], spot: bool) -> Demands {
    Demands {
        buyer,
        excluded: excluded.to_vec(),
        real_only: false,
        price_max: None,
        notice_min: Millis(0),
        spot,
        regions: Regions(0),
        reputation_min: Permille(0),
        power_known: false,
        features: Features(0),
        operators: Operators::default(),
        nodes: Vec::new(),
        in_parts: true,
        devices: vec![MODEL.to_owned()],
        text_model: None,
    }
}
