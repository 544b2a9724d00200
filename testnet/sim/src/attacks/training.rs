//! Plays training runs in which the cheapest provider deceives the buyer, and the buyer audits a
//! share of the steps. The buyer is the core of a real one.
//!
//! In this model, the state after a step is a hash of the state before it and of the step's
//! position. So two providers that do the same steps get the same states, and if two states differ,
//! a third provider decides. The attacker does not know which steps the audits run again.

use std::collections::VecDeque;

use souk_market::{AccountKey, Credits, JobId, MarketId, Millis, Permille};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::train::{
    Action, AuditSpec, Event, Fact, LeaseEnd, LeaseEndReason, LeaseWish, LossBits, Payer,
    RunRequest, RunSpec, Shortage, States, Step, StepAnswer, TrainCore,
};

use super::position::PRICE;
use super::{AttackCost, Loss, WorstLoss, new_attack_cost};

/// The steps of a run, each of which takes a second of the device.
const STEPS: u64 = 600;
const STEP_TIME: Millis = Millis(1_000);

/// The default of `souk train --keep`, and the most steps of one of its leases.
const KEEP_STEPS: u64 = 8;
const LEASE_STEPS_MAX: u64 = 512;

/// The number of runs in which each attack is tried.
const RUNS: u64 = 400;

/// The attacker, which is the cheapest provider, and two honest ones.
const ATTACKER: u8 = 1;
const PROVIDERS: [u8; 3] = [ATTACKER, 2, 3];

/// The way in which the attacker deceives.
#[derive(Clone, Copy)]
enum Deception {
    /// It does only every second step.
    Lazy,
    /// It sends other states once, in the segment of this number.
    Poisoned { segment: u64 },
}

/// The result of a run.
struct Outcome {
    /// Device seconds that the buyer paid.
    paid: u64,
    /// Device seconds that the attacker was paid and did not work.
    unworked: u64,
    /// Whether the attacker was convicted.
    is_found: bool,
    /// Whether the result has the states of the undisturbed run.
    is_right: bool,
}

/// Plays each attack with some shares of audits.
pub fn play_workers() -> Vec<AttackCost> {
    let lazy = |_: u64| Deception::Lazy;
    let poisoned = |seed: u64| Deception::Poisoned {
        segment: seed % (STEPS / KEEP_STEPS),
    };
    [
        play_runs("every second step of a training is left out", 100, lazy),
        play_runs("one state of a training is poisoned", 100, poisoned),
        play_runs("one state of a training is poisoned", 1_000, poisoned),
    ]
    .into()
}

fn play_runs(attack: &str, share: u16, deception: impl Fn(u64) -> Deception) -> AttackCost {
    let mut found = 0;
    let mut worst: Option<WorstLoss> = None;
    for seed in 0..RUNS {
        let outcome = TrainingWorld::new(seed, Permille(share), deception(seed)).play();
        found += u64::from(outcome.is_found);
        // A wrong model is worth nothing.
        let worth = if outcome.is_right { STEPS } else { 0 };
        let micro = |seconds: u64| i64::try_from(seconds * PRICE.0).unwrap_or(i64::MAX);
        let loss = WorstLoss::from_loss(Loss {
            lost: micro(outcome.paid) - micro(worth),
            gained: micro(outcome.unworked),
            reputation: 0,
        });
        worst = Some(worst.map_or(loss, |worst| worst.max_with(loss)));
    }
    let percent = share / 10;
    let attack = format!("{attack}, {percent} % run again, found in {found} of {RUNS}");
    let planned = Millis(STEPS * STEP_TIME.0);
    let worst = worst.expect("there are runs");
    new_attack_cost(attack, planned, worst, RUNS as usize)
}

struct TrainingWorld {
    deception: Deception,
    core: Option<TrainCore>,
    actions: VecDeque<Action>,
    wish: Option<LeaseWish>,
    leases: u64,
    outcome: Outcome,
}

/// A running lease of a training.
struct Lease {
    provider: u8,
    state: ContentId,
    /// Steps that were answered.
    done: u64,
}

impl TrainingWorld {
    fn new(seed: u64, share: Permille, deception: Deception) -> TrainingWorld {
        let secret = ContentId::for_content(&seed.to_le_bytes());
        let began = Fact::Began {
            subject: ContentId::for_content(b"subject"),
            payer: Payer {
                market: MarketId([0; 32]),
                account: AccountKey([0; 32]),
            },
            steps: STEPS,
            states: to_states(first_state()),
            command: String::new(),
            at: Millis(0),
            audits: Some(AuditSpec {
                share,
                secret: *secret.as_bytes(),
            }),
        };
        let spec = RunSpec {
            keep_steps: KEEP_STEPS,
            lease_steps_max: LEASE_STEPS_MAX,
            budget: None,
            evaluation: None,
        };
        let (core, actions) = TrainCore::begin(spec, began);
        TrainingWorld {
            deception,
            core: Some(core),
            actions: actions.into(),
            wish: None,
            leases: 0,
            outcome: Outcome {
                paid: 0,
                unworked: 0,
                is_found: false,
                is_right: false,
            },
        }
    }

    /// Plays the run to its end.
    fn play(mut self) -> Outcome {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Quote(wish) => self.quote(wish),
                Action::BeginLease => self.run_lease(),
                Action::Record(_) => self.send_event(Event::Recorded),
                Action::End(_) => break,
                _ => {}
            }
        }
        let past = self.core.as_ref().expect("it is there").past();
        let attacker = account(ATTACKER);
        self.outcome.is_found = past.audit_findings.convicted.contains(&attacker);
        self.outcome.is_right = past.kept.states == to_states(honest_state(STEPS));
        self.outcome
    }

    fn send_event(&mut self, event: Event) {
        let core = self.core.as_mut().expect("it is there");
        self.actions.extend(core.apply(event));
    }

    /// Offers the cheapest provider that the run does not exclude.
    fn quote(&mut self, wish: LeaseWish) {
        let is_offered = |it: &&u8| !wish.excluded.contains(&account(**it));
        let provider = PROVIDERS.iter().find(is_offered).copied();
        self.wish = Some(wish);
        self.leases += 1;
        let job = JobId(*ContentId::for_content(&self.leases.to_le_bytes()).as_bytes());
        match provider.map(account) {
            Some(provider) => self.send_event(Event::Quoted { job, provider }),
            None => self.send_event(Event::NotQuoted {
                short_of: Shortage::Offers,
            }),
        }
    }
    /// Buys the quoted lease, and runs it to its end.
    fn run_lease(&mut self) {
        let wish = self.wish.clone().expect("it was quoted");
        let is_offered = |it: &&u8| !wish.excluded.contains(&account(**it));
        let provider = PROVIDERS.iter().find(is_offered).copied();
        let mut lease = Lease {
            provider: provider.expect("it was quoted"),
            state: wish.from.states[0].1,
            done: 0,
        };
        let (provider, escrow) = (account(lease.provider), Credits(wish.steps * PRICE.0));
        self.send_event(Event::Leased { provider, escrow });
        let RunRequest::Step(first) = wish.first else {
            unreachable!("nothing is evaluated");
        };
        self.answer_step(&mut lease, first);
        loop {
            self.send_event(Event::StepWanted);
            match self.take_request() {
                Some(Action::Send(RunRequest::Step(step))) => self.answer_step(&mut lease, step),
                Some(Action::SendNoMore) => break,
                // The core asks again once the journal has the last states.
                _ => {}
            }
        }
        self.outcome.paid += lease.done;
        self.send_event(Event::LeaseEnded(LeaseEnd {
            cost: Some(Credits(lease.done * PRICE.0)),
            receipts: Vec::new(),
            why: LeaseEndReason::Done,
            request_time: Some(Micros::from_millis(STEP_TIME.0)),
            planned_time: Micros::from_millis(STEP_TIME.0),
        }));
    }

    /// Carries out the core's actions up to its next request to the lease.
    fn take_request(&mut self) -> Option<Action> {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Record(_) => self.send_event(Event::Recorded),
                request @ (Action::Send(_) | Action::SendNoMore) => return Some(request),
                _ => {}
            }
        }
        None
    }

    /// Has the provider of a lease do a step, or answer as if it had.
    fn answer_step(&mut self, lease: &mut Lease, step: Step) {
        let loss = to_loss(lease.state);
        let is_deceiving = lease.provider == ATTACKER
            && match self.deception {
                Deception::Lazy => step.position.is_multiple_of(2),
                Deception::Poisoned { segment } => {
                    step.keep && step.position / KEEP_STEPS == segment
                }
            };
        lease.done += 1;
        match (is_deceiving, self.deception) {
            (true, Deception::Lazy) => self.outcome.unworked += 1,
            (true, Deception::Poisoned { .. }) => lease.state = next_state(lease.state, u64::MAX),
            (false, _) => lease.state = next_state(lease.state, step.position),
        }
        let states = step.keep.then(|| to_states(lease.state));
        self.send_event(Event::Answered(StepAnswer::Done { loss, states }));
    }
}

fn account(provider: u8) -> AccountKey {
    AccountKey([provider; 32])
}

fn first_state() -> ContentId {
    ContentId::for_content(b"first")
}

fn next_state(state: ContentId, position: u64) -> ContentId {
    ContentId::for_content(&[&state.as_bytes()[..], &position.to_le_bytes()].concat())
}

/// Returns the state after this many steps of an honest run.
fn honest_state(steps: u64) -> ContentId {
    (0..steps).fold(first_state(), next_state)
}

fn to_states(state: ContentId) -> States {
    vec![("parameters".to_owned(), state)]
}

fn to_loss(state: ContentId) -> LossBits {
    let bytes = state.as_bytes();
    LossBits(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_all_steps_run_again_a_poisoned_state_is_in_no_result() {
        for segment in 0..STEPS / KEEP_STEPS {
            let deception = Deception::Poisoned { segment };
            let outcome = TrainingWorld::new(segment, Permille(1_000), deception).play();
            assert!(outcome.is_found && outcome.is_right, "{segment}");
        }
    }

    #[test]
    fn the_page_states_what_each_attack_costs() {
        let page = include_str!("../../../../docs/training-audits.md");
        let costs = play_workers();
        let rows = super::super::table_rows(&costs);
        let lines = rows.map(|row| format!("| {} |", row.join(" | ")));
        let missing: Vec<String> = lines.filter(|line| !page.contains(line)).collect();
        assert!(missing.is_empty(), "the page lacks {missing:#?}");
    }

    #[test]
    fn without_audits_the_lazy_worker_is_paid_for_what_it_left_out() {
        let outcome = TrainingWorld::new(1, Permille(0), Deception::Lazy).play();
        assert_eq!((outcome.paid, outcome.unworked), (STEPS, STEPS / 2));
        assert!(!outcome.is_found && !outcome.is_right);
    }
}
