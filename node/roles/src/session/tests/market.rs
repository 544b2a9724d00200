//! Simulates a market for the tests of sessions: its providers, and the jobs that sessions buy from
//! them.

use std::collections::{BTreeMap, VecDeque};

use souk_market::{AccountKey, Credits, JobId};

use super::model::{Dice, Honesty, Machine};
use crate::clock::Micros;
use crate::job::{End, Loss, Reason, Spending};
use crate::session::{Choice, Event, QuoteFailure, Step};

/// The least budget of a session.
const PRICE: u64 = 10;

/// The steps of a job that are sent and not answered: the number of each and the step.
type Queue = VecDeque<(u32, Step)>;

/// The job of a session.
pub struct WorldJob {
    pub id: JobId,
    pub machine: Machine,
    pub budget: Option<Credits>,
    /// The number of steps that it was bought for, less those that it answered.
    requests: u32,
    next_request: u32,
    pub window: u32,
    pub sent: BTreeMap<u32, Queue>,
    pub is_closing: bool,
    pub is_cancelled: bool,
    /// Whether the shell cannot begin it.
    pub is_unopened: bool,
}

impl WorldJob {
    pub fn running(&self) -> usize {
        self.sent.values().map(VecDeque::len).sum()
    }

    pub fn send(&mut self, sequence: u32, step: Step) {
        assert!(!self.is_closing, "a step for a closed session");
        let queue = self.sent.entry(sequence).or_default();
        queue.push_back((self.next_request, step));
        self.next_request += 1;
        assert!(self.running() <= self.window as usize, "beyond the window");
    }

    /// Takes the next step of a sequence to answer.
    pub fn take_sent(&mut self, sequence: u32) -> Option<(u32, Step)> {
        let first = self.sent.get_mut(&sequence)?.pop_front()?;
        self.requests -= 1;
        Some(first)
    }

    pub fn is_used_up(&self) -> bool {
        self.requests == 0
    }
}

/// How often what happens, in percent.
#[derive(Clone)]
pub struct Rates {
    pub fails: u64,
    pub blames: u64,
    pub cancels: u64,
    pub quote_fails: u64,
    pub unopened: u64,
}

/// The providers and the jobs of a world.
pub struct Market {
    pub honesties: Vec<Honesty>,
    pub rates: Rates,
    pub requests_max: u64,
    pub quoted: BTreeMap<u32, (Vec<AccountKey>, Option<Credits>)>,
    pub jobs: BTreeMap<u32, WorldJob>,
    /// The cost of each ended job.
    pub ended: BTreeMap<JobId, Spending>,
    next_job: u64,
}

impl Market {
    pub fn new(honesties: Vec<Honesty>, rates: Rates, requests_max: u64) -> Market {
        Market {
            honesties,
            rates,
            requests_max,
            quoted: BTreeMap::new(),
            jobs: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_job: 0,
        }
    }

    pub fn quote(
        &mut self,
        dice: &mut Dice,
        session: u32,
        budget: Option<Credits>,
        excluded: &[AccountKey],
        wait_longer: Option<Micros>,
    ) -> Result<Choice, QuoteFailure> {
        self.quoted.remove(&session);
        if budget.is_some_and(|budget| budget.0 < PRICE) {
            return Err(QuoteFailure { is_short: true });
        }
        let all = (0..self.honesties.len()).map(|it| AccountKey([it as u8; 32]));
        let mut free: Vec<AccountKey> = all.filter(|it| !excluded.contains(it)).collect();
        let fails = self.rates.quote_fails / if wait_longer.is_some() { 2 } else { 1 };
        if free.is_empty() || dice.is_hit(fails) {
            return Err(QuoteFailure { is_short: false });
        }
        let mut providers = Vec::new();
        for _ in 0..=u64::from(free.len() > 3 && dice.is_hit(30)) {
            let place = dice.below(free.len() as u64) as usize;
            providers.push(free.swap_remove(place));
        }
        self.quoted.insert(session, (providers.clone(), budget));
        Ok(Choice { providers })
    }

    pub fn is_honest(&self, account: &AccountKey) -> bool {
        self.honesties[usize::from(account.0[0])] == Honesty::Honest
    }

    pub fn open(&mut self, dice: &mut Dice, session: u32, window: u32) {
        let (providers, budget) = self.quoted.remove(&session).expect("it was quoted");
        for job in self.jobs.values() {
            let is_shared = providers
                .iter()
                .any(|it| job.machine.providers.contains(it));
            assert!(!is_shared, "two sessions have a provider in common");
        }
        self.next_job += 1;
        let mut id = [0; 32];
        id[..8].copy_from_slice(&self.next_job.to_le_bytes());
        let job = WorldJob {
            id: JobId(id),
            machine: Machine::new(providers, &self.honesties),
            budget,
            requests: 1 + dice.below(self.requests_max) as u32,
            next_request: 0,
            window,
            sent: BTreeMap::new(),
            is_closing: false,
            is_cancelled: false,
            is_unopened: dice.is_hit(self.rates.unopened),
        };
        assert!(self.jobs.insert(session, job).is_none(), "two open jobs");
    }

    /// Ends the job of a session, if it can end now: by itself, or with a failure. Returns the
    /// event, and the providers that failed.
    pub fn end_job(&mut self, dice: &mut Dice, session: u32) -> Option<(Event, Vec<AccountKey>)> {
        let job = &self.jobs[&session];
        if job.is_unopened {
            self.jobs.remove(&session);
            return Some((Event::NotOpened { session }, Vec::new()));
        }
        let is_done = job.is_used_up() || (job.is_closing && job.running() == 0);
        let provider = dice.pick(&job.machine.providers);
        let lost = Reason::Lost {
            provider,
            loss: Loss::Confused,
        };
        let mut culprits = Vec::new();
        let how = if job.is_cancelled || dice.is_hit(self.rates.cancels) {
            Some(End::Cancelled)
        } else if is_done {
            dice.is_hit(20).then_some(End::Done)
        } else if dice.is_hit(self.rates.blames) {
            Some(End::Failed(Reason::BadInput("it does not fit".to_owned())))
        } else if dice.is_hit(self.rates.fails) {
            culprits.push(provider);
            Some(End::Failed(lost.clone()))
        } else {
            return None;
        };
        let mut before = Vec::new();
        if how.is_some() && dice.is_hit(10) {
            culprits.push(provider);
            before.push(lost);
        }
        let job = self.jobs.remove(&session)?;
        let most = job.budget.map_or(60, |budget| budget.0);
        let spent = dice.below(most.min(PRICE) + 1);
        let held = match how {
            None | Some(End::Done) => 0,
            _ => dice.below(most - spent + 1),
        };
        let [spent, held] = [spent, held].map(Credits);
        let spending = Spending { spent, held };
        self.ended.insert(job.id, spending);
        let event = Event::Ended {
            session,
            job: job.id,
            how,
            before,
            spending,
        };
        Some((event, culprits))
    }

    /// Returns the cost of a job, some of whose leases may have closed since the last call.
    pub fn look_up(&mut self, dice: &mut Dice, job: JobId) -> Option<Spending> {
        let cost = self.ended.get_mut(&job).expect("a job that ended");
        let closed = [0, cost.held.0 / 2, cost.held.0];
        let closed = dice.pick(&closed);
        cost.held.0 -= closed;
        cost.spent.0 += dice.below(closed + 1);
        (!dice.is_hit(20)).then_some(*cost)
    }

    /// Checks that all jobs together can never cost more than the budget.
    pub fn assert_within(&self, budget: Option<Credits>) {
        let Some(budget) = budget else {
            return;
        };
        let ended = self.ended.values().map(|it| it.spent.0 + it.held.0);
        let open = self.jobs.values().filter_map(|it| it.budget).map(|it| it.0);
        let cost: u64 = ended.chain(open).sum();
        assert!(cost <= budget.0, "{cost} of {} credits", budget.0);
    }
}
