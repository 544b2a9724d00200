//! One job of a buyer, and what it demands.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, Credits, Features, Millis, Operators, Permille, Regions};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::job::{JobSpec, Limits};
use souk_roles::market::demands::Demands;

use super::planner::{GIVEN, Shape};
use super::worker::MODEL;
use crate::random::Random;

/// One job, through all lives of its buyer.
pub struct Job {
    pub spec: JobSpec,
    pub shape: Shape,
    /// What is given for each request, by its number: the content and its value.
    pub given: Vec<(ContentId, u64)>,
    /// The requests that leave it out, and are fed by those before them in their sequences.
    pub left_out: BTreeSet<u32>,
    /// The next request to be given in this life.
    pub next: usize,
    pub under_way: usize,
    pub told_no_more: bool,
    /// For how long its user thinks after an answer, and until when.
    pub pause: u64,
    pub next_at: u64,
    /// Answers that are where they stay: requests by number.
    pub answers: BTreeMap<u32, Vec<(String, ContentId)>>,
    pub began_at: u64,
    /// Values on the disk, whether a fact says so yet or not.
    pub kept: BTreeSet<ContentId>,
    pub lives: u32,
    /// The market did not answer a command of it.
    pub is_unheard: bool,
}

impl Job {
    /// When it began, and how many requests it has.
    pub fn began_at(&self) -> u64 {
        self.began_at
    }

    /// What the model gives for a request.
    pub fn truth(&self, request: u32) -> Option<BTreeMap<String, u64>> {
        let (_, given) = self.given.get(request as usize)?;
        let value = match self.left_out.contains(&request) {
            true => {
                let before = request.checked_sub(self.spec.sequences)?;
                self.shape.fed(&self.truth(before)?)?
            }
            false => *given,
        };
        let steps = request.checked_div(self.spec.sequences);
        Some(self.shape.values(value, steps.map(u64::from)))
    }

    /// What a request brings.
    pub fn inputs(&self, request: u32) -> Vec<(String, ContentId)> {
        let (given, _) = self.given[request as usize];
        match self.left_out.contains(&request) {
            true => Vec::new(),
            false => vec![(GIVEN.to_owned(), given)],
        }
    }

    /// How many answers are where they stay.
    pub fn answered(&self) -> usize {
        self.answers.len()
    }

    /// How many there are to be.
    pub fn requests(&self) -> usize {
        self.given.len()
    }
}

/// For how many sequences a job is a session, if it is one, and which of its requests leave out
/// what they are fed.
pub fn session(shape: &mut Shape, requests: u32, random: &mut Random) -> (u32, BTreeSet<u32>) {
    if !random.chance(250) {
        return (0, BTreeSet::new());
    }
    let sequences = random.between(1, 3) as u32;
    shape.feed(random);
    // Some bring all, some what they must, others now this and now that.
    let share = [0, 500, 900, 1_000][random.place(4)];
    let later = (sequences..requests).filter(|_| random.chance(share) && shape.is_fed());
    (sequences, later.collect())
}

/// How many requests may be under way, and for how long a user thinks after an answer.
pub fn pace(
    shape: &mut Shape,
    (sequences, requests): (u32, u64),
    limits: &mut Limits,
    random: &mut Random,
) -> (u32, u64) {
    let window = random.between(1, 8) as u32;
    if sequences == 0 {
        return (window, 0);
    }
    limits.copies = 1;
    let pause = shape.think(requests, limits, random);
    match pause > 0 || random.chance(250) {
        true => (1, pause),
        false => (window, 0),
    }
}

/// What a buyer will bear.
pub fn limits(random: &mut Random) -> Limits {
    Limits {
        budget: random
            .chance(300)
            .then(|| Credits(random.between(2_000, 60_000))),
        deadline: random
            .chance(150)
            .then(|| Micros::seconds(random.between(2, 30))),
        time_max: Micros::seconds(600),
        wait: Micros::seconds(random.below(10)),
        providers_min: 1,
        providers_max: random.between(1, 4) as u32,
        excluded: Vec::new(),
        regions: Regions(0),
        reputation_min: Permille(0),
        notice_min: Millis(0),
        copies: random.between(1, 2) as u32,
        spot: random.chance(300),
        priority: random.below(3) as u8,
    }
}

/// What a buyer demands of the devices that jobs are planned over.
pub fn demands(buyer: AccountKey, excluded: &[AccountKey], spot: bool) -> Demands {
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
    }
}
