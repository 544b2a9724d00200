//! Describes a job of a simulated buyer: the random properties of the job, and how far its user has
//! come. A job can be a *session*, whose parts keep a state from one request of a *sequence* to the
//! next.
//!
//! The simulator creates a [`SimulatedJob`] when a buyer begins a job, keeps it while the buyer's
//! process restarts, and compares the answers with the values that the model computes. All random
//! properties come from the generator of the seed, so a change in the order of the draws changes
//! the run of every seed.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, Credits, Features, JobId, Millis, Operators, Permille, Regions};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::job::{JobSpec, Limits, attempt_id};
use souk_roles::market::demands::Demands;

use super::planner::{GIVEN, JobShape};
use super::worker::MODEL;
use crate::random::Random;

/// One job, from its start to its end, across all restarts of its buyer.
pub struct SimulatedJob {
    /// The job as the buyer's process gets it.
    pub spec: JobSpec,
    /// The parts of the model, and the values that they compute.
    pub shape: JobShape,
    /// The input of each request, by its number: the content and its value.
    pub given: Vec<(ContentId, u64)>,
    /// The requests of a session that omit the input; a result of the previous request of the
    /// sequence replaces it.
    pub without_input: BTreeSet<u32>,
    /// The number of the next request that the user sends to the buyer's current process.
    pub next: usize,
    /// The number of requests that the buyer's current process has received and not answered.
    pub under_way: usize,
    /// Whether the user has informed the buyer's current process that no request follows.
    pub has_sent_no_more: bool,
    /// How long the user waits after an answer, in milliseconds.
    pub pause: u64,
    /// The simulated time at which the user can send the next request, in milliseconds.
    pub next_at: u64,
    /// The answers that the user has stored, by request.
    pub answers: BTreeMap<u32, Vec<(String, ContentId)>>,
    /// The simulated time at which the job began, in milliseconds.
    pub began_at: u64,
    /// The contents that the buyer has stored on disk, whether or not a fact in its journal
    /// mentions them yet.
    pub kept: BTreeSet<ContentId>,
    /// The number of processes of the buyer that have worked on the job: one, and one more for each
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

    /// Returns the ids under which the job's attempts can have bought leases, if no process made
    /// more than 20 attempts.
    pub fn attempt_ids(&self) -> Vec<JobId> {
        let last = self.process_count * 20 + 20;
        (0..=last).map(|n| attempt_id(self.spec.job, n)).collect()
    }

    /// Returns the correct value of each part of the model for a request, by name; `None` if there
    /// is no such request.
    pub fn expected_values(&self, request: u32) -> Option<BTreeMap<String, u64>> {
        let (_, given) = self.given.get(request as usize)?;
        let value = match self.without_input.contains(&request) {
            true => {
                let before = request.checked_sub(self.spec.sequences)?;
                self.shape.feed_value(&self.expected_values(before)?)?
            }
            false => *given,
        };
        let steps = request.checked_div(self.spec.sequences);
        Some(self.shape.model_values(value, steps.map(u64::from)))
    }

    /// Returns the inputs of a request, by name; none if the request omits its input.
    pub fn request_inputs(&self, request: u32) -> Vec<(String, ContentId)> {
        let (given, _) = self.given[request as usize];
        match self.without_input.contains(&request) {
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

/// Decides at random whether the job is a session. If so, it usually makes the value of one part of
/// `shape` the input of the next request. Returns the number of sequences, 0 for no session, and
/// the requests that omit their input.
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
    // Some sessions never omit inputs, some omit all that they can, and others omit some.
    let share = [0, 500, 900, 1_000][random.draw_index(4)];
    let later = (sequences..requests).filter(|_| random.chance(share) && shape.is_fed());
    (sequences, later.collect())
}

/// Returns the maximum number of requests in flight, and the user's pause after an answer, in
/// milliseconds. For a session it sets `limits.copies` to 1; if the session's user pauses between
/// requests, it also records the total pause in `shape`, and removes the budget, the deadline and
/// the use of spot leases from `limits`.
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

/// Returns the conditions that an ask must meet for a buyer's planner: a device of the model
/// [`MODEL`], not sold by an excluded account.
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
