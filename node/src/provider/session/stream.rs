//! Many requests through one lease: each part of each request is run as soon as its inputs are
//! here, the oldest request first, while the tensors of later ones travel. Several devices that are
//! sold as one are at several requests at once. What later parts want of the buyer, weights above
//! all, comes while the first requests go through the parts before them.
//!
//! The buyer's window bounds what is under way. When a tensor does not come, the buyer is told and
//! nothing more is begun: what was done until then is owed, and the receipt says it. The same holds
//! when the lease is to end early: what is at work is finished where there is time for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::io::WriteHalf;
use futures::stream::{FuturesOrdered, FuturesUnordered};
use libp2p::swarm::Stream;
use souk_market::Receipt;
use souk_memory::Tensor;
use souk_scheduler::execution::timeline::{Span, SpanKind, UnixMicros};
use souk_scheduler::execution::{Precedence, RunResult};
use tokio::sync::{Notify, mpsc};

use crate::clock::unix_us;
use crate::executor::LeaseExecutor;
use crate::protocols::lease::{Answered, Closing, Event, Failure, Request, Start, WINDOW_MAX};
use crate::provider::done::Done;
use crate::provider::notice::Curfew;
use crate::provider::session::{self, PARTS_FIRST, Word};
use crate::provider::sessions::Running;
use crate::provider::values::{Came, Party, Values, title};
use crate::provider::{Provider, turns, work};

/// One lease of a line of providers.
pub(crate) struct Stage<'a> {
    pub(crate) provider: &'a Provider,
    pub(crate) start: &'a Start,
    pub(crate) running: &'a Running<'a>,
    pub(crate) buyer: Party,
    /// Rung whenever a tensor has come.
    pub(crate) bell: Arc<Notify>,
    pub(crate) precedence: Precedence,
    pub(crate) rank: turns::Rank,
    pub(crate) curfew: Curfew<'a>,
}

/// A request under way.
struct Open<'a> {
    values: Values<'a>,
    /// The part that is run next.
    part: usize,
    /// Whether that is on the devices.
    at_work: bool,
    made: Vec<(String, souk_memory::ContentId)>,
}

/// A part of a request, on the device or about to be.
struct Turn<'a> {
    request: u32,
    part: usize,
    inputs: BTreeMap<String, Tensor>,
    /// Held while it runs.
    _turn: turns::Turn<'a>,
}

/// What the device does next.
enum Step<'a> {
    /// It compiles the next of the later parts, all of which is here.
    Prepare(usize),
    /// It runs a part of a request.
    Run(Turn<'a>),
}

/// What is under way, and what was done.
struct Flow<'a> {
    stage: &'a Stage<'a>,
    /// Parts that are compiled; what the next one wants of the buyer comes meanwhile.
    prepared: usize,
    /// Whether that has come, and whether it is compiled now.
    contents_here: bool,
    preparing: bool,
    open: BTreeMap<u32, Open<'a>>,
    /// The number of the next request.
    next: u32,
    done: Done,
    /// No request is begun any more.
    over: bool,
    /// Since when the device has had nothing to do.
    idle_since: Option<u64>,
}

impl Stage<'_> {
    /// Runs requests until the buyer says that it is over, or the lease is; the slots is closed by
    /// then.
    pub(crate) async fn run(
        &self,
        (slots, first): (LeaseExecutor, Values<'_>),
        (words, writer): (&mut mpsc::Receiver<Word>, &mut WriteHalf<Stream>),
    ) -> Result<Done, Failure> {
        let mut flow = Flow::new(self, first);
        // What was begun first is answered first, and the first that fails is told.
        let (mut at_work, mut offering) = (FuturesOrdered::new(), FuturesUnordered::new());
        let (ahead, mut heard_over) = (slots.ahead(), false);
        let mut turns = self.provider.turns.changes();
        loop {
            if heard_over && at_work.is_empty() {
                // What was promised to others is told before the lease is over.
                while let Some(untaken) = offering.next().await {
                    session::tell_untaken(writer, untaken).await;
                }
                return Ok(flow.end());
            }
            // What changes from here on is heard of.
            turns.mark_unchanged();
            while at_work.len() < ahead {
                let Some(step) = flow.step(writer).await? else {
                    break;
                };
                at_work.push_back(self.work(&slots, step));
            }
            let is_free = at_work.len() < ahead;
            let has_run = flow.has_run();
            tokio::select! {
                Some(done) = at_work.next() => {
                    let Some((turn, ran)) = done? else {
                        flow.on_prepared();
                        continue;
                    };
                    for (output, id) in flow.on_ran(&turn, ran, writer).await? {
                        let request = Some(turn.request);
                        let lease = self.start.lease;
                        offering.push(work::offer(self.provider, lease, output, id, request));
                    }
                }
                came = flow.contents(), if flow.awaits_contents() => {
                    flow.on_contents(came, writer).await?;
                }
                word = words.recv(), if !heard_over => match word {
                    Some(Word::Closing(Closing::Next(request))) => flow.on_request(&request)?,
                    Some(Word::Closing(Closing::Over)) => {
                        (flow.over, heard_over) = (true, true);
                        // What the device is at need not be done, and its process ends.
                        at_work.clear();
                    }
                    // A buyer that has gone has said its last word.
                    _ => (flow.over, heard_over) = (true, true),
                },
                () = self.bell.notified() => {}
                Ok(()) = turns.changed(), if is_free => {}
                why = self.curfew.nears(has_run), if !flow.over => {
                    flow.stall(why, writer).await;
                }
                () = self.curfew.is_over() => match flow.has_run() {
                    true => return Ok(flow.end()),
                    false => return Err(Failure::Expired),
                },
                // Whoever does not take it has failed, not this provider: the buyer hands it on.
                Some(untaken) = offering.next() => session::tell_untaken(writer, untaken).await,
            }
        }
    }

    /// Has the device do a step; what a run gave comes with its turn.
    async fn work<'s>(
        &self,
        slots: &LeaseExecutor,
        step: Step<'s>,
    ) -> Result<Option<(Turn<'s>, RunResult)>, Failure> {
        match step {
            Step::Prepare(part) => {
                let part = &self.start.parts[part];
                work::prepare(self.provider, slots, part)
                    .await
                    .map(|()| None)
            }
            Step::Run(turn) => self.run_turn(slots, turn).await.map(Some),
        }
    }

    async fn run_turn<'s>(
        &self,
        slots: &LeaseExecutor,
        mut turn: Turn<'s>,
    ) -> Result<(Turn<'s>, RunResult), Failure> {
        let inputs = std::mem::take(&mut turn.inputs);
        let (part, title) = (&self.start.parts[turn.part], title(turn.request));
        let ran = work::run(self.provider, slots, part, &title, inputs, self.precedence);
        Ok((turn, ran.await?))
    }
}

impl<'a> Flow<'a> {
    fn new(stage: &'a Stage<'a>, first: Values<'a>) -> Flow<'a> {
        let first = first.of_request(&Request::default(), stage.buyer);
        Flow {
            stage,
            prepared: PARTS_FIRST,
            contents_here: false,
            preparing: false,
            open: BTreeMap::from([(0, Open::new(first))]),
            next: 1,
            done: Done::default(),
            over: false,
            idle_since: None,
        }
    }

    /// Opens one more request: what it needs is on its way from now on.
    fn on_request(&mut self, request: &Request) -> Result<(), Failure> {
        if request.number != self.next || self.open.len() >= WINDOW_MAX as usize {
            let window = "the buyer sent requests beyond its window".to_owned();
            return Err(Failure::Limit(window));
        }
        if self.next as usize >= Receipt::TENSORS_MAX {
            let most = Receipt::TENSORS_MAX;
            let tensors = format!("a receipt names {most} tensors, and no further request");
            return Err(Failure::Limit(tensors));
        }
        self.next += 1;
        if self.over {
            return Ok(());
        }
        let Stage {
            provider,
            start,
            running,
            buyer,
            bell,
            ..
        } = self.stage;
        let awaited = running.open(request.number);
        let values = Values::new(provider, awaited, &start.peers, bell);
        let values = values.of_request(request, *buyer);
        self.open.insert(request.number, Open::new(values));
        Ok(())
    }

    /// Whether something of the buyer's is still to come for later parts.
    fn awaits_contents(&self) -> bool {
        let later = self.prepared < self.stage.start.parts.len();
        later && !self.contents_here && !self.over
    }

    /// What the next of the later parts wants of the buyer. It comes for the first request, which
    /// is under way until the last part has run.
    async fn contents(&mut self) -> Result<Vec<Came>, Failure> {
        match self.open.get_mut(&0) {
            Some(first) => first.values.contents().await,
            None => std::future::pending().await,
        }
    }

    async fn on_contents(
        &mut self,
        came: Result<Vec<Came>, Failure>,
        writer: &mut WriteHalf<Stream>,
    ) -> Result<(), Failure> {
        let came = match came {
            Ok(came) => came,
            Err(failure) => {
                self.stall(failure, writer).await;
                return Ok(());
            }
        };
        let part = &self.stage.start.parts[self.prepared];
        let first = self.open.get_mut(&0);
        let first = first.expect("the first request waits for every part");
        first.values.take_contents(self.stage.buyer.1, came, part)?;
        self.contents_here = true;
        self.check_memory()
    }

    fn on_prepared(&mut self) {
        self.prepared += 1;
        (self.contents_here, self.preparing) = (false, false);
    }

    /// What the device does next, if anything can be done: what later requests need too, then the
    /// oldest request.
    async fn step(&mut self, writer: &mut WriteHalf<Stream>) -> Result<Option<Step<'a>>, Failure> {
        if self.contents_here && !self.preparing && !self.over {
            self.preparing = true;
            return Ok(Some(Step::Prepare(self.prepared)));
        }
        Ok(self.turn(writer).await?.map(Step::Run))
    }

    /// Notes that the devices have nothing to do from now on, if none is at work.
    fn begin_idleness(&mut self) {
        if !self.preparing && !self.open.values().any(|open| open.at_work) {
            self.idle_since.get_or_insert_with(unix_us);
        }
    }

    async fn turn(&mut self, writer: &mut WriteHalf<Stream>) -> Result<Option<Turn<'a>>, Failure> {
        let (parts, prepared) = (&self.stage.start.parts, self.prepared);
        let ready = |open: &Open<'_>| {
            let next = !open.at_work && open.part < prepared;
            next && open.values.is_ready(&parts[open.part])
        };
        let found = self.open.iter_mut().find(|(_, open)| ready(open));
        let Some((&request, open)) = found.filter(|_| !self.over) else {
            if let Some(oldest) = self.open.values().find(|open| !open.at_work) {
                oldest.values.hurry(&parts[oldest.part]);
                if oldest.part >= prepared {
                    oldest.values.hurry_contents(&parts[oldest.part]);
                }
            }
            self.begin_idleness();
            return Ok(None);
        };
        let part = &parts[open.part];
        if let Err(failure) = open.values.await_inputs(part).await {
            // Whoever was to send it has failed, and the buyer sees who.
            self.stall(failure, writer).await;
            return Ok(None);
        }
        // A more urgent lease of the same buyer's is at work: its end is heard of.
        let Some(turn) = self.stage.provider.turns.take_now(self.stage.rank) else {
            self.begin_idleness();
            return Ok(None);
        };
        let (inputs, part) = (open.values.inputs(part)?, open.part);
        open.at_work = true;
        self.done.begins(&parts[part], &inputs);
        self.check_memory()?;
        self.end_idleness(request);
        let name = parts[part].name.clone();
        session::tell(writer, &Event::Running { part: name }).await;
        Ok(Some(Turn {
            request,
            part,
            inputs,
            _turn: turn,
        }))
    }

    /// Begins nothing more, and tells the buyer why.
    async fn stall(&mut self, why: Failure, writer: &mut WriteHalf<Stream>) {
        self.over = true;
        session::tell(writer, &Event::Stalled(why)).await;
    }

    /// Whether there is anything to be paid for.
    fn has_run(&self) -> bool {
        self.done.report.is_some()
    }

    fn check_memory(&self) -> Result<(), Failure> {
        let bytes = self.open.values().map(|open| open.values.bytes).sum();
        let allowed = self.stage.provider.terms.limits.check_memory(bytes);
        allowed.map_err(|refusal| Failure::Limit(refusal.to_string()))
    }

    /// The device waited for this request.
    fn end_idleness(&mut self, request: u32) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        self.done.timeline.push(Span {
            device: self.stage.provider.label.clone(),
            lane: "network".to_owned(),
            name: format!("inputs{}", title(request)),
            kind: SpanKind::Wait,
            start: UnixMicros(since),
            end: UnixMicros(unix_us()),
        });
    }

    /// Keeps what a part gave; a request whose last part it was is answered.
    async fn on_ran(
        &mut self,
        turn: &Turn<'_>,
        ran: RunResult,
        writer: &mut WriteHalf<Stream>,
    ) -> Result<Vec<(&'a crate::protocols::lease::Output, souk_memory::ContentId)>, Failure> {
        let parts = &self.stage.start.parts;
        let open = self.open.get_mut(&turn.request);
        let open = open.expect("a request stays open while it is run");
        let made = self.done.ran(&parts[turn.part], ran, &mut open.values)?;
        let named = made.iter().map(|(output, id)| (output.name.clone(), *id));
        open.made.extend(named);
        (open.part, open.at_work) = (turn.part + 1, false);
        if open.part == parts.len() {
            let ended = self.open.remove(&turn.request);
            let ended = ended.expect("it was there just now");
            self.done.over(ended.values);
            let first = self.open.keys().next().copied().unwrap_or(self.next);
            self.stage.running.done_before(first);
            let (request, outputs) = (turn.request, ended.made);
            let answered = Event::Answered(Answered { request, outputs });
            session::tell(writer, &answered).await;
        }
        Ok(made)
    }

    /// The sum, with what moved for requests that were not done.
    fn end(mut self) -> Done {
        for (_, open) in std::mem::take(&mut self.open) {
            self.done.over(open.values);
        }
        self.done
    }
}

impl<'a> Open<'a> {
    fn new(values: Values<'a>) -> Open<'a> {
        Open {
            values,
            part: 0,
            at_work: false,
            made: Vec::new(),
        }
    }
}
