//! Uses the device for a lease: checks and compiles its parts, runs its requests, and offers the
//! outputs to the buyer and the providers that need them.

use super::*;
use crate::lease::Part;

/// The device time of one unit that the market lets a provider note before the buyer states that
/// the work has begun.
const UNSTARTED_MAX: Micros = Micros::from_seconds(2);

impl LeaseCore {
    /// Handles the answer to an effect for the lease.
    pub(in crate::provider) fn on_answer(
        &mut self,
        shared: &mut SharedState,
        effort: LeaseEffect,
        answer: Answer,
    ) -> Option<End> {
        let end = match (effort, answer) {
            (LeaseEffect::Contents(part, contents), Answer::Arrived(arrivals)) => {
                self.on_contents(shared, part, &contents, &arrivals)
            }
            (LeaseEffect::Contents(..), Answer::NotArrived(why)) => match self.stage {
                WorkStage::Serving => {
                    self.stall_work(shared, why);
                    self.pump_runs(shared)
                }
                _ => Some(End::Failed(why)),
            },
            (LeaseEffect::Input(number, name, id), Answer::Arrived(mut arrivals)) => {
                let came = arrivals.pop().expect("one was asked for");
                self.on_input(shared, (number, name, id), Ok(came))
            }
            (LeaseEffect::Input(number, name, id), Answer::NotArrived(why)) => {
                self.on_input(shared, (number, name, id), Err(why))
            }
            (LeaseEffect::Check, Answer::Checked(checked)) => self.on_checked(shared, checked),
            (LeaseEffect::Sandbox, Answer::Sandboxed { slots }) => self.on_place(shared, slots),
            (LeaseEffect::Sandbox, Answer::NoSandbox(fault)) => {
                self.has_place = false;
                Some(End::Failed(fault))
            }
            (LeaseEffect::Prepare(part), Answer::Prepared(prepared)) => {
                self.on_prepared(shared, part, prepared)
            }
            (LeaseEffect::Run(request, part), Answer::Ran(ran)) => {
                self.on_ran(shared, (request, part), ran)
            }
            (LeaseEffect::Offer(consumer, offer), Answer::Offered(taken)) => {
                self.on_offered(shared, consumer, offer, taken)
            }
            (effort, answer) => panic!("{effort:?} is not answered by {answer:?}"),
        };
        if end.is_none() {
            self.assert_step_invariants();
        }
        end
    }

    /// Requests a sandbox (a process with its own limits) to run the lease in.
    pub(super) fn find_place(&mut self, shared: &mut SharedState) {
        (self.stage, self.has_place) = (WorkStage::Placing, true);
        let action = Action::Sandbox {
            lease: self.id(),
            price: self.lease.price,
            deadline: self.ends_at_most(),
            alone: self.start.last,
        };
        shared.request_effect(Wait::LeaseResult(self.id(), LeaseEffect::Sandbox), action);
    }

    pub(super) fn on_place(&mut self, shared: &mut SharedState, slots: u32) -> Option<End> {
        assert_eq!(self.stage, WorkStage::Placing, "it is asked once");
        // Steps of all sequences that wait are done at once.
        let slots = slots.max(self.start.sequences).max(1);
        (self.stage, self.slots) = (WorkStage::Checking, slots);
        let graphs = self.start.parts.iter().map(|part| part.graph).collect();
        let lease = self.id();
        let wait = Wait::LeaseResult(lease, LeaseEffect::Check);
        shared.request_effect(wait, Action::Check { lease, graphs });
        None
    }

    /// Handles the result of the check of the lease's graphs.
    fn on_checked(
        &mut self,
        shared: &mut SharedState,
        checked: Result<(), Failure>,
    ) -> Option<End> {
        assert_eq!(self.stage, WorkStage::Checking, "it is asked once");
        if let Err(failure) = checked {
            return Some(End::Failed(failure));
        }
        self.stage = WorkStage::Preparing;
        self.prepare_part(shared);
        None
    }

    /// Requests that the device compiles the next part.
    pub(super) fn prepare_part(&mut self, shared: &mut SharedState) {
        assert!(!self.is_preparing && self.prepared < self.here);
        self.is_preparing = true;
        let part = &self.start.parts[self.prepared as usize];
        let action = Action::Prepare {
            lease: self.id(),
            part: self.prepared,
            graph: part.graph,
            weights: part.weights.clone(),
        };
        let effort = LeaseEffect::Prepare(self.prepared);
        shared.request_effect(Wait::LeaseResult(self.id(), effort), action);
    }

    pub(super) fn on_prepared(
        &mut self,
        shared: &mut SharedState,
        part: u32,
        prepared: Result<(), Failure>,
    ) -> Option<End> {
        assert!(self.is_preparing && part == self.prepared, "one at a time");
        self.is_preparing = false;
        if let Err(failure) = prepared {
            return Some(End::Failed(failure));
        }
        self.prepared += 1;
        if self.stage == WorkStage::Preparing {
            shared.send_message(self.stream, ProviderMessage::Ready);
            self.stage = WorkStage::Ready;
            if self.may_run {
                return self.begin_serving(shared);
            }
        }
        self.pump_runs(shared)
    }

    pub(super) fn begin_serving(&mut self, shared: &mut SharedState) -> Option<End> {
        assert!(self.stage == WorkStage::Ready && self.may_run);
        (self.stage, self.started) = (WorkStage::Serving, shared.now.log);
        self.note_later(shared);
        if let Some(first) = self.requests.open.get_mut(&self.start.first.number) {
            first.has_begun = true;
        }
        self.pump_runs(shared)
    }

    /// Begins all work that can begin. Returns how the lease ended, if it did.
    pub(in crate::provider) fn pump_runs(&mut self, shared: &mut SharedState) -> Option<End> {
        if self.stage < WorkStage::Serving {
            return None;
        }
        if self.bill.has_run() && self.is_to_end(shared) {
            self.stall_work(shared, Failure::Stopping);
        }
        while self.has_slot() && self.over.is_none() && self.begin_next(shared) {}
        self.watch_idle(shared);
        let end = self.end_state(shared);
        if end.is_none() {
            self.assert_step_invariants();
        }
        end
    }

    pub(super) fn has_slot(&self) -> bool {
        self.runs.len() + usize::from(self.is_preparing) < self.slots as usize
    }

    /// Compiles the next part, or runs the oldest request that is ready. Returns whether it began
    /// something.
    pub(super) fn begin_next(&mut self, shared: &mut SharedState) -> bool {
        let is_wanted = self.prepared < self.limit;
        if self.prepared < self.here && !self.is_preparing && is_wanted {
            self.prepare_part(shared);
            return true;
        }
        if self.waits_for_start() {
            return false;
        }
        let parts = &self.start.parts;
        let is_session = self.start.sequences > 0;
        let (mut chosen, mut before) = (None, BTreeSet::new());
        for (number, open) in &self.requests.open {
            // A step must wait for those of its sequence that came before it.
            if is_session && !before.insert(open.sequence) {
                continue;
            }
            if open.at_work || open.part >= self.limit.min(self.prepared) {
                continue;
            }
            let part = &parts[open.part as usize];
            if let Some(failure) = open.input_failure(part) {
                let failure = failure.clone();
                self.stall_work(shared, failure);
                return false;
            }
            if open.is_ready(part) {
                chosen = Some((*number, open.part));
                break;
            }
        }
        let Some((number, part)) = chosen else {
            self.prioritize_oldest_request(shared);
            return false;
        };
        if self.bill.has_run() && !self.is_in_time(shared) {
            self.stall_work(shared, Failure::Expired);
            return false;
        }
        // A more urgent lease of the same buyer's is at work: its end is heard of.
        if !shared.runs_by_rank.take_turn(self.rank()) {
            return false;
        }
        self.run(shared, number, part);
        true
    }

    /// Returns whether a tab's answers come to what a buyer owes that has not told the log that the
    /// work began: the next one waits until it does.
    fn waits_for_start(&self) -> bool {
        let most = UNSTARTED_MAX.0 * u64::from(self.lease.quantity.0);
        self.start.is_tab() && !self.lease.work_started && self.bill.busy().0 >= most
    }

    pub(super) fn run(&mut self, shared: &mut SharedState, number: u32, index: u32) {
        let part = &self.start.parts[index as usize];
        let open = self.requests.open.get_mut(&number);
        let open = open.expect("it was chosen");
        assert!(!open.at_work && open.part == index, "part by part");
        (open.at_work, open.has_begun) = (true, true);
        let inputs = open.part_inputs(part);
        let mut work = Box::new(part.clone());
        if !open.keep {
            let outputs = work.outputs.iter_mut();
            let unkept = outputs.filter(|output| self.start.is_feedback(&output.name));
            unkept.for_each(|output| output.is_wanted = false);
        }
        let message = ProviderMessage::Running {
            request: number,
            part: index,
        };
        let action = Action::Run {
            lease: self.lease.id,
            request: number,
            sequence: open.sequence,
            part: index,
            work,
            inputs,
            bytes_max: self.may_make(shared),
            price: self.lease.price,
            tokens: self.lease.tokens,
            time_left: self.bill.time_left(&self.lease),
            deadline: self.run_deadline(),
        };
        shared.send_message(self.stream, message);
        shared.request_effect(
            Wait::LeaseResult(self.id(), LeaseEffect::Run(number, index)),
            action,
        );
        self.runs.push_back(Run {
            request: number,
            part: index,
            began: shared.now.tick,
            ended: None,
        });
    }

    /// Speeds up the transfers for the oldest request, because the device waits for them.
    pub(super) fn prioritize_oldest_request(&mut self, shared: &mut SharedState) {
        let mut waiting = self.requests.open.iter();
        let Some((number, open)) = waiting.find(|(_, open)| !open.at_work) else {
            return;
        };
        let (number, index) = (*number, open.part);
        if self.awaited == Some((number, index)) {
            return;
        }
        let Some(part) = self.start.parts.get(index as usize) else {
            return;
        };
        let coming = part.inputs.iter();
        let coming = coming.filter_map(|input| open.coming.get(&input.name));
        let mut contents: Vec<ContentId> = coming.copied().collect();
        if index >= self.prepared {
            contents.extend(shared.pending_efforts(self.lease.id).flat_map(|effort| {
                let contents: &[Content] = match effort {
                    LeaseEffect::Contents(_, contents) => contents,
                    _ => &[],
                };
                contents.iter().map(|content| content.id)
            }));
        }
        self.awaited = Some((number, index));
        if !contents.is_empty() {
            shared.push_effect(Action::Hurry { contents });
        }
    }

    pub(super) fn on_ran(
        &mut self,
        shared: &mut SharedState,
        (request, part): (u32, u32),
        ran: Result<RunResult, FailedRun>,
    ) -> Option<End> {
        let of = |run: &&mut Run| (run.request, run.part) == (request, part);
        let run = self.runs.iter_mut().find(of);
        let run = run.expect("what has ended was begun");
        assert!(run.ended.is_none(), "a run ends once");
        run.ended = Some(ran);
        while let Some(run) = self.take_ended() {
            shared.runs_by_rank.end_turn(self.rank());
            let ended = run.ended.expect("it has ended");
            let ended = ended.map_err(|failed| {
                if let Failure::BadInput(_) = failed.failure {
                    let took = shared.now.tick.since(run.began);
                    let part = &self.start.parts[run.part as usize];
                    self.bill
                        .add_failed_run(failed_time(part, failed.promised, took));
                }
                failed.failure
            });
            if let Some(end) = self.on_ended(shared, (run.request, run.part), ended) {
                return Some(end);
            }
        }
        self.pump_runs(shared)
    }

    /// Takes an ended run to report: only the one that began first or, in a session, any, because
    /// each is of another sequence.
    fn take_ended(&mut self) -> Option<Run> {
        let is_session = self.start.sequences > 0;
        let begun = if is_session { self.runs.len() } else { 1 };
        let mut first = self.runs.iter().take(begun);
        let ended = first.position(|run| run.ended.is_some())?;
        self.runs.remove(ended)
    }

    pub(super) fn on_ended(
        &mut self,
        shared: &mut SharedState,
        (number, index): (u32, u32),
        ended: Result<RunResult, Failure>,
    ) -> Option<End> {
        let part = &self.start.parts[index as usize];
        let left = self.may_make(shared);
        let made = match ended {
            // Of several at once each was told of all that was left.
            Ok(ran) if ran.bytes > left => Err(Failure::too_much(ran.bytes, left)),
            ended => ended,
        };
        let made = match made {
            Ok(ran) => ran,
            // Its time or its room is over: what others gave is owed.
            Err(why)
                if self.bill.has_run() && (self.start.is_tab() || is_of_time_or_room(&why)) =>
            {
                if let Some(open) = self.requests.open.get_mut(&number) {
                    open.at_work = false;
                }
                self.stall_work(shared, why);
                return None;
            }
            Err(failure) => return Some(End::Failed(failure)),
        };
        let names = part.outputs.iter().map(|output| &output.name);
        if !names.eq(made.outputs.iter().map(|(name, _)| name)) {
            let why = "it gave other outputs than its graph".to_owned();
            return Some(End::Failed(Failure::Run(why)));
        }
        let is_first = !self.bill.has_run();
        self.bill.add_run(number, index, part, &made);
        let message = ProviderMessage::Made {
            request: number,
            part: index,
            outputs: made.outputs.clone(),
        };
        shared.send_message(self.stream, message);
        if self.start.is_tab() {
            let (lease, usage) = (self.id(), self.bill.usage(&self.lease));
            let answered = vec![Fact::Answered { lease, usage }];
            shared.record_facts(answered, FollowingStep::Nothing);
        }
        self.offer_outputs(shared, number, index, &made.outputs);
        let contents = self.requests.on_made(number, &made.outputs);
        if !contents.is_empty() {
            shared.push_effect(Action::Hold { contents });
        }
        // A second run reads the first run's tensors, so that both have the same inputs.
        let (requests, mut own) = (&self.requests, made.outputs);
        own.retain(|(name, _)| !requests.is_made_elsewhere(name));
        let open = self.requests.open.get_mut(&number);
        let open = open.expect("a request stays open while it is run");
        (open.at_work, open.part) = (false, index + 1);
        open.values.extend(own);
        if open.part as usize == self.start.parts.len() {
            self.drop_request(shared, number);
        }
        if is_first {
            self.set_timers(shared);
        }
        None
    }

    /// Offers the outputs of a part of a request to the providers that read them.
    fn offer_outputs(
        &self,
        shared: &mut SharedState,
        number: u32,
        index: u32,
        made: &[(String, ContentId)],
    ) {
        let outputs = self.start.parts[index as usize].outputs.iter();
        for (output, (name, tensor)) in outputs.zip(made) {
            for (to, consumer) in &output.consumers {
                let offer = Offer {
                    from: self.lease.id,
                    to: *to,
                    request: number,
                    name: name.clone(),
                    tensor: *tensor,
                };
                let effort = LeaseEffect::Offer(*consumer, offer.clone());
                let action = Action::Offer {
                    to: *consumer,
                    offer,
                };
                shared.request_effect(Wait::LeaseResult(self.lease.id, effort), action);
            }
        }
    }

    /// Returns the bytes that the lease can still make.
    fn may_make(&self, shared: &SharedState) -> u64 {
        shared
            .config
            .made_bytes_max
            .saturating_sub(self.bill.output_bytes())
    }

    pub(super) fn on_offered(
        &mut self,
        shared: &mut SharedState,
        consumer: AccountKey,
        offer: Offer,
        taken: Result<OfferAnswer, String>,
    ) -> Option<End> {
        // Whoever does not take it has failed, not this provider: the buyer hands it on.
        let why = match taken {
            Ok(OfferAnswer::Yes) => return self.pump_runs(shared),
            Ok(OfferAnswer::No) => "it does not wait for the tensor".to_owned(),
            Err(why) => crate::lease::truncate_text(why),
        };
        let untaken = crate::lease::UntakenOffer {
            consumer,
            offer,
            why,
        };
        shared.send_message(self.stream, ProviderMessage::Untaken(Box::new(untaken)));
        self.pump_runs(shared)
    }
}

/// Returns the time that a buyer owes for a run that failed because of its inputs: what it took, at
/// most what it was planned to take. The plan is the buyer's word, so it is no less than this
/// provider's own figure. There is none if only the run shows its length.
fn failed_time(part: &Part, promised: Option<Micros>, took: Micros) -> Micros {
    match promised {
        Some(promised) => took.min(part.expected.max(promised)),
        None => took,
    }
}

/// Returns whether a run failed because its time or its room is over, or its inputs are at fault:
/// what other runs made is owed.
fn is_of_time_or_room(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Expired | Failure::Limit(_) | Failure::Disk(_) | Failure::BadInput(_)
    )
}
