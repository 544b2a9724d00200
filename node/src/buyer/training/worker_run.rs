//! Runs a training on several workers, round by round: each worker does some steps from the same
//! parameters, then the buyer averages the parameters, and the next round begins from there.
//!
//! The part of a worker in a round is a *leg*: a run of its own, with its own journal in the
//! round's folder, over as many leases as it needs. The run's own journal gets one fact for each
//! round, with the states of all workers. All legs of a round look for a device at once, each with
//! an equal share of the budget. A leg that finds none waits until another one is done. The legs
//! that are left then get the rest of the budget, one after the other. So the number of providers
//! only determines how many legs train side by side.
//!
//! A leg whose provider was lost or could not be confirmed waits too. It ends the run only if it
//! fails again while no other leg trains: before that, for example, the second provider that must
//! confirm a loss of NaN can be busy with another leg.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use souk_market::{AccountKey, Credits};
use souk_memory::Tensor;
use souk_roles::train::{End, Fact, LOST_LEASES_MAX, LossBits, Past, Shortage, next_link};
use souk_scheduler::gradient::StepGraph;

use super::Training;
use super::journal::RunJournal;
use super::lease_outcome::is_money;
use super::outer::OuterState;
use super::round_leg::{LegEnd, RoundLeg, mean_losses, total_cost};
use super::run::{TrainingEnd, TrainingEvent, TrainingResult, TrainingRun};
use super::run_error::TrainingRunError;
use super::sent::state_ids;
use super::workers::{Leg, Workers};
use crate::buyer::job::Limits;

/// The name of the state that holds the momentum of the outer optimiser.
const OUTER_MOMENTUM_STATE: &str = "outer/momentum";

/// A training run on several workers.
pub(super) struct WorkerRun<'a, O> {
    run: &'a TrainingRun<'a>,
    workers: Workers,
    journal: RunJournal,
    /// The last kept states: the parameters, the momentum of the outer optimiser, and the states of
    /// each worker's own optimiser.
    states: BTreeMap<String, Tensor>,
    observe: RefCell<O>,
    /// How many leases of this life ended early, by provider.
    lost: BTreeMap<AccountKey, u32>,
    /// Whether this is its first life.
    is_new: bool,
    /// Whether the caller stops the run.
    is_stopped: Cell<bool>,
}

impl<'a, O: FnMut(TrainingEvent<'_>)> WorkerRun<'a, O> {
    /// Begins a run, or continues the run of an existing journal.
    pub(super) fn begin(
        run: &'a TrainingRun<'a>,
        workers: Workers,
        mut journal: RunJournal,
        command: String,
        observe: O,
    ) -> Result<Self, TrainingRunError> {
        let is_new = journal.past().is_none();
        let states = match journal.past() {
            None => {
                let states = first_states(run.training, workers);
                journal.append_states(&states, vec![run.begin_fact(command, &states)])?;
                states
            }
            Some(past) => {
                run.check_past(&journal, past)?;
                journal.read_states(&past.kept)?
            }
        };
        Ok(WorkerRun {
            run,
            workers,
            journal,
            states,
            observe: RefCell::new(observe),
            lost: BTreeMap::new(),
            is_new,
            is_stopped: Cell::new(false),
        })
    }

    /// Runs to the end.
    pub(super) async fn run(mut self) -> Result<TrainingResult, TrainingRunError> {
        if self.is_new
            && let Err(end) = self.run.quote().await
        {
            // No leg needs to wait for a device that nobody has.
            return self.end_run(end, &[]);
        }
        loop {
            let mut legs = self.plan_round();
            if legs.is_empty() {
                return self.end_run(TrainingEnd::Done, &legs);
            }
            if self.is_stopped.get() {
                return self.end_run(TrainingEnd::Stopped, &[]);
            }
            self.settle_legs(&mut legs).await?;
            let end = self.run_legs(&mut legs).await?;
            let mut trained = legs.iter().filter(|it| !it.leg.is_evaluation());
            if !trained.all(RoundLeg::is_done) {
                return self.end_run(end.unwrap_or(TrainingEnd::Stopped), &legs);
            }
            let is_over = self.past().is_done();
            if let Some(end) = self.close_round(&legs)? {
                return self.end_run(end, &legs);
            }
            if is_over {
                // The last evaluation was tried, and the run is done without it too.
                return self.end_run(TrainingEnd::Done, &[]);
            }
        }
    }

    fn past(&self) -> &Past {
        self.journal.past().expect("the run has begun")
    }

    /// Returns the legs of the next round; none if all is done.
    fn plan_round(&self) -> Vec<RoundLeg> {
        let (past, settings) = (self.past(), &self.run.training.settings);
        let first = past.kept.position;
        let steps = self.workers.round_length(first, settings.steps);
        let is_due = self.run.training.held_out.as_ref().is_some_and(|it| {
            let every = it.every_steps;
            self.workers
                .is_evaluation_point(first, settings.steps, every)
                && !past.is_evaluated()
        });
        let leg = |(place, leg): (usize, Leg)| RoundLeg {
            leg,
            place,
            training: self.run.training.for_leg(leg, self.leg_states(leg.worker)),
            spent: Credits::ZERO,
            result: None,
            cancel: Arc::default(),
        };
        let count = if steps == 0 { 0 } else { self.workers.count };
        let workers = (0..count).map(|worker| {
            (
                worker,
                Leg {
                    worker,
                    first,
                    steps,
                },
            )
        });
        let evaluation = Leg {
            worker: 0,
            first,
            steps: 0,
        };
        let evaluation = is_due.then_some((self.workers.count, evaluation));
        workers.chain(evaluation).map(leg).collect()
    }

    /// Returns the states from which a worker begins the next round.
    fn leg_states(&self, worker: usize) -> BTreeMap<String, Tensor> {
        let own = |name: &String| {
            let is_shared = *name == StepGraph::parameters_input();
            let stored = if is_shared {
                name.clone()
            } else {
                worker_state(worker, name)
            };
            (name.clone(), self.states[&stored].clone())
        };
        self.run.training.step.states.keys().map(own).collect()
    }

    /// Ends the leases that an earlier process left open, and adds up the cost of each leg.
    async fn settle_legs(&self, legs: &mut [RoundLeg]) -> Result<(), TrainingRunError> {
        for leg in legs {
            let mut journal = self.journal.open_leg(&leg.leg.name())?;
            if let Some(past) = journal.past().cloned() {
                let past = self.run.settle_lease(&mut journal, past).await?;
                leg.spent = past.spent;
            }
        }
        Ok(())
    }

    /// Runs the legs of a round: as many side by side as there are devices and money for, then the
    /// others, one after the other. Returns the reason if the run ends; otherwise none.
    async fn run_legs(
        &mut self,
        legs: &mut [RoundLeg],
    ) -> Result<Option<TrainingEnd>, TrainingRunError> {
        let count = legs.len() as u64;
        let mut limits = self.run.limits.clone();
        limits.budget = self.budget_left(legs).map(|left| Credits(left.0 / count));
        let lost = self.lost.iter();
        let lost = lost.filter(|(_, count)| **count >= LOST_LEASES_MAX);
        limits.excluded.extend(lost.map(|(provider, _)| *provider));
        let all = (0..legs.len()).collect();
        let mut waiting = self.run_side_by_side(legs, all, limits).await?;
        if !legs.iter().any(RoundLeg::is_done) {
            // No other provider is left, so the next round may go to those that were lost.
            self.lost.clear();
        }
        self.note_providers(legs)?;
        while let Some(place) = waiting.pop_front() {
            if self.is_stopped.get() || legs.iter().any(RoundLeg::ends_run) {
                break;
            }
            // A provider that was lost gets one more chance now.
            let mut limits = self.run.limits.clone();
            limits.budget = self.budget_left(legs);
            let alone = self.run_side_by_side(legs, vec![place], limits).await?;
            self.note_providers(legs)?;
            if !alone.is_empty() && !legs[place].leg.is_evaluation() {
                return Ok(legs[place].take_end());
            }
        }
        // A leg that has ended by itself stopped the others.
        let place = legs.iter().position(RoundLeg::has_failed);
        let place = place.or_else(|| legs.iter().position(RoundLeg::ends_run));
        Ok(place.and_then(|place| legs[place].take_end()))
    }

    /// Notes which providers the legs lost, and from which the run buys no more.
    fn note_providers(&mut self, legs: &mut [RoundLeg]) -> Result<(), TrainingRunError> {
        let results = legs.iter_mut().filter_map(|leg| leg.result.as_mut());
        for result in results {
            for (provider, count) in std::mem::take(&mut result.lost) {
                *self.lost.entry(provider).or_default() += count;
            }
            for provider in std::mem::take(&mut result.banned) {
                if !self.past().banned.contains(&provider) {
                    self.journal.append_fact(Fact::Banned { provider })?;
                }
            }
        }
        Ok(())
    }

    /// Runs legs side by side, each with the budget of these limits. Returns those that must wait.
    /// Whenever one is done, one of these begins again.
    async fn run_side_by_side(
        &self,
        legs: &mut [RoundLeg],
        chosen: Vec<usize>,
        mut limits: Limits,
    ) -> Result<VecDeque<usize>, TrainingRunError> {
        limits.excluded.extend(&self.past().banned);
        let mut waiting = VecDeque::new();
        let mut ended = Vec::new();
        let mut fault = None;
        {
            let legs: &[RoundLeg] = legs;
            let limits = &limits;
            let start = |place: usize| async move {
                let leg = &legs[place];
                let mut limits = limits.clone();
                // The budget of a leg also covers what it has cost so far.
                if let Some(budget) = &mut limits.budget {
                    budget.0 = budget.0.saturating_add(leg.spent.0);
                }
                (place, self.run_leg(leg, limits).await)
            };
            let stop_all = || legs.iter().for_each(|leg| leg.cancel.notify_one());
            let mut is_ending = false;
            let mut running: FuturesUnordered<_> = chosen.into_iter().map(start).collect();
            while !running.is_empty() {
                let outcome = tokio::select! {
                    Some(outcome) = running.next() => outcome,
                    () = self.run.cancel.notified() => {
                        self.is_stopped.set(true);
                        is_ending = true;
                        stop_all();
                        continue;
                    }
                };
                let (place, result) = outcome;
                match result.as_ref().map(|result| legs[place].judge(result)) {
                    Ok(LegEnd::Waits) => waiting.push_back(place),
                    Ok(LegEnd::Done) if !is_ending => {
                        running.extend(waiting.pop_front().map(start));
                    }
                    Ok(LegEnd::Done) => {}
                    // A second stop would end the leases of the others at once.
                    Ok(LegEnd::EndsRun) | Err(_) if is_ending => {}
                    Ok(LegEnd::EndsRun) | Err(_) => {
                        is_ending = true;
                        stop_all();
                    }
                }
                match result {
                    Ok(result) => ended.push((place, result)),
                    Err(error) => fault = fault.or(Some(error)),
                }
            }
        }
        for (place, result) in ended {
            legs[place].spent = result.spent;
            legs[place].result = Some(result);
        }
        match fault {
            Some(error) => Err(error),
            None => Ok(waiting),
        }
    }

    /// Runs a leg to its end.
    async fn run_leg(
        &self,
        leg: &RoundLeg,
        limits: Limits,
    ) -> Result<TrainingResult, TrainingRunError> {
        let name = leg.leg.name();
        let journal = self.journal.open_leg(&name)?;
        let run = TrainingRun {
            training: &leg.training,
            limits,
            cancel: leg.cancel.clone(),
            ..*self.run
        };
        let spent_before = self.past().spent;
        let observe = |event: TrainingEvent<'_>| {
            let event = match event {
                TrainingEvent::Evaluated { loss, spent, .. } => TrainingEvent::Evaluated {
                    done: leg.leg.first,
                    loss,
                    spent: Credits(spent_before.0.saturating_add(spent.0)),
                },
                ref event => TrainingEvent::OfWorker {
                    place: leg.place,
                    event,
                },
            };
            (self.observe.borrow_mut())(event);
        };
        Box::pin(run.run_alone(journal, String::new(), observe)).await
    }

    /// Returns what the run can still spend besides what its legs have cost so far.
    fn budget_left(&self, legs: &[RoundLeg]) -> Option<Credits> {
        let of_legs = legs.iter().map(|leg| leg.spent.0);
        let spent = of_legs.fold(self.past().spent.0, u64::saturating_add);
        let budget = self.run.limits.budget;
        budget.map(|budget| Credits(budget.0.saturating_sub(spent)))
    }

    /// Averages the parameters of the workers, and records the round. Returns the reason if the run
    /// ends; otherwise none.
    fn close_round(&mut self, legs: &[RoundLeg]) -> Result<Option<TrainingEnd>, TrainingRunError> {
        let (from, link) = (self.past().kept.position, self.past().link);
        let of_evaluation = legs.iter().filter(|leg| leg.leg.is_evaluation());
        let evaluated = of_evaluation.filter_map(RoundLeg::held_out_loss).next();
        let evaluated = evaluated.filter(|_| !self.past().is_evaluated());
        let mut facts = Vec::new();
        facts.extend(evaluated.map(|loss| Fact::HeldOut {
            position: from,
            loss: LossBits(loss.to_bits()),
        }));
        let trained: Vec<&RoundLeg> = legs.iter().filter(|it| !it.leg.is_evaluation()).collect();
        let (mut losses, mut of_workers) = (Vec::new(), Vec::new());
        if !trained.is_empty() {
            (losses, of_workers) = mean_losses(&trained);
            let Some(states) = self.average(&trained) else {
                let step = from + losses.len() as u64 - 1;
                let loss = losses.last().copied().unwrap_or(f32::NAN);
                return Ok(Some(TrainingEnd::NotFinite { step, loss }));
            };
            self.states = states;
        }
        let (cost, receipts) = total_cost(legs);
        let bits: Vec<LossBits> = losses.iter().map(|it| LossBits(it.to_bits())).collect();
        let states = state_ids(&self.states);
        // In one write: the evaluation counts with its cost.
        facts.push(Fact::Round {
            from,
            link: next_link(link, from, &bits, &states),
            losses: bits,
            states,
            cost,
            receipts,
        });
        self.journal.append_states(&self.states, facts)?;
        self.forget_states(legs);
        if !losses.is_empty() {
            let event = TrainingEvent::Round {
                done: self.past().kept.position,
                losses: &losses,
                of_workers: &of_workers,
                spent: self.past().spent,
            };
            (self.observe.get_mut())(event);
        }
        Ok(None)
    }

    /// Returns the states after a round; none if a number is infinite or no number.
    fn average(&self, trained: &[&RoundLeg]) -> Option<BTreeMap<String, Tensor>> {
        let name = StepGraph::parameters_input();
        let dims = self.states[&name].dims().to_vec();
        let numbers = |state: &Tensor| state.to_vec::<f32>().expect("states are in 32 bits");
        let of_workers = trained.iter().map(|leg| numbers(&leg.states()[&name]));
        let of_workers: Vec<Vec<f32>> = of_workers.collect();
        let mut outer = OuterState {
            parameters: numbers(&self.states[&name]),
            momentum: numbers(&self.states[OUTER_MOMENTUM_STATE]),
        };
        outer.apply_round(&of_workers);
        let mut all = outer.parameters.iter().chain(&outer.momentum);
        if !all.all(|number| number.is_finite()) {
            return None;
        }
        let tensor = |numbers| Tensor::from_vec(dims.clone(), numbers).expect("the same shape");
        let own = trained.iter().flat_map(|leg| {
            let states = leg.states().iter().filter(|(it, _)| **it != name);
            states.map(|(name, it)| (worker_state(leg.leg.worker, name), it.clone()))
        });
        let mut states: BTreeMap<String, Tensor> = own.collect();
        states.insert(OUTER_MOMENTUM_STATE.to_owned(), tensor(outer.momentum));
        states.insert(name.clone(), tensor(outer.parameters));
        Some(states)
    }

    /// Removes the results of the legs from the buyer's store, because the next round writes new
    /// ones.
    fn forget_states(&self, legs: &[RoundLeg]) {
        let results = legs.iter().filter_map(|leg| leg.result.as_ref());
        for state in results.flat_map(|result| result.states.values()) {
            if let Err(error) = self.run.buyer.tensors().store().remove(&state.id()) {
                tracing::debug!(%error, "an old state stays in memory");
            }
        }
    }

    /// Records the end of the run. Legs that are not done stay for a later life.
    fn end_run(
        mut self,
        end: TrainingEnd,
        legs: &[RoundLeg],
    ) -> Result<TrainingResult, TrainingRunError> {
        let how = match &end {
            TrainingEnd::Done => End::Done,
            TrainingEnd::Stopped => End::Stopped,
            TrainingEnd::NotFinite { step, loss } => End::NotFinite {
                step: *step,
                loss: LossBits(loss.to_bits()),
            },
            TrainingEnd::NoLease(error) if !is_money(error) => End::NoLease,
            TrainingEnd::NoLease(_) | TrainingEnd::NoMoney(_) => End::NoMoney,
            TrainingEnd::Lost(_) => End::Lost,
            TrainingEnd::Disputed { step, .. } => End::Disputed {
                step: *step,
                short_of: Shortage::default(),
            },
            TrainingEnd::Journal(_) => End::Journal,
        };
        self.journal.append_fact(Fact::Over { how })?;
        let lost = std::mem::take(&mut self.lost);
        let (cost, of_legs) = total_cost(legs);
        let past = self.past();
        let number = |loss: &LossBits| f32::from_bits(loss.0);
        let held_out = past.held_out.iter();
        let mut receipts = past.receipts.clone();
        receipts.extend(of_legs);
        let banned = past.banned.clone();
        let parameters = StepGraph::parameters_input();
        Ok(TrainingResult {
            end,
            losses: past.losses.iter().map(number).collect(),
            held_out: held_out.map(|(done, loss)| (*done, number(loss))).collect(),
            link: past.link,
            states: [(parameters.clone(), self.states[&parameters].clone())].into(),
            spent: Credits(past.spent.0.saturating_add(cost.0)),
            receipts,
            lost,
            banned,
            audits: None,
            due_steps: 0,
        })
    }
}

/// Returns the states with which a run of several workers begins: each worker has those of its own
/// optimiser.
fn first_states(training: &Training, workers: Workers) -> BTreeMap<String, Tensor> {
    let parameters = StepGraph::parameters_input();
    let first = &training.step.states;
    let own = |worker| {
        let states = first.iter().filter(|(name, _)| **name != parameters);
        states.map(move |(name, state)| (worker_state(worker, name), state.clone()))
    };
    let mut states: BTreeMap<String, Tensor> = (0..workers.count).flat_map(own).collect();
    let of_run = first[&parameters].clone();
    let zeros = vec![0.0_f32; of_run.shape().element_count()];
    let momentum = Tensor::from_vec(of_run.dims(), zeros).expect("the same shape");
    states.insert(OUTER_MOMENTUM_STATE.to_owned(), momentum);
    states.insert(parameters, of_run);
    states
}

/// Returns the name of a state of a worker's own optimiser among those of the run.
fn worker_state(worker: usize, name: &str) -> String {
    format!("worker-{}/{name}", worker + 1)
}
