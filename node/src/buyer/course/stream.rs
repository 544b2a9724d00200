//! Many requests through one plan: a window of them is under way, answers come in order.
//!
//! A round buys the leases of a line and sends requests along it until no more come, its receipts
//! are full or a provider fails. Requests that were not answered by then are sent again in the next
//! round; the receipts of a round hold what each provider did, answered or not.

mod fetched;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesOrdered, FuturesUnordered};
use libp2p::PeerId;
use souk_market::{AccountKey, LeaseId, Receipt};
use souk_memory::{ContentId, Tensor};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::super::dispatch::{self, Aloud, Floor};
use super::super::journal::{self, Noted};
use super::super::purchase::{self, Bought};
use super::super::session::Session;
use super::super::settle;
use super::super::verdict::Run;
use super::super::{Buyer, Finished, JobError, Objection, Quote, SessionError};
use super::Course;
use crate::buyer::dispatch::connection::{Heard, Line, Said, WORDS_MAX};
use crate::buyer::dispatch::relay;
use crate::buyer::job::Limits;
use crate::clock::unix_ms;
use crate::folder::key;
use crate::protocols::lease::{Closing, Failure, Request, Source, Start, WINDOW_MAX};
use fetched::{Fetched, Made};

/// The share of a lease's time after which no request is sent any more.
const SENT_WITHIN: f64 = 2.0 / 3.0;

/// The share after which none is awaited: receipts are signed before the lease is over.
const AWAITED_WITHIN: f64 = 0.9;

/// Requests of the same shapes, one after the other.
pub struct Requests {
    /// How many there will be, for the plan and the length of leases.
    pub count: u32,
    /// How many may be under way at a time; at most [`WINDOW_MAX`].
    pub window: u32,
    /// Their inputs by name, until the sender is dropped.
    pub inputs: mpsc::Receiver<BTreeMap<String, Tensor>>,
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request's number, from 0; answers come in this order.
    pub number: u32,
    /// The outputs by name.
    pub outputs: BTreeMap<String, Tensor>,
}

/// A job's course over many requests.
pub(in crate::buyer) struct Streaming<'a> {
    course: Course<'a>,
    requests: Requests,
    answers: mpsc::Sender<Answer>,
    /// Requests that were taken in and are not answered, oldest first; never more than the window.
    waiting: VecDeque<BTreeMap<String, Tensor>>,
    /// No more requests come.
    drained: bool,
    answered: u32,
}

/// An output on its way to the buyer.
type Fetching<'f> = BoxFuture<'f, Result<Fetched, JobError>>;

/// One round: the line of providers, and what is under way on it.
struct Round<'r> {
    buyer: &'r Buyer,
    quote: &'r Quote,
    bought: &'r Bought,
    parties: Vec<(AccountKey, PeerId)>,
    /// Words to each provider, by place.
    words: Vec<mpsc::Sender<Closing>>,
    /// The most requests that the leases' receipts can name, and their time allows.
    requests_max: u32,
    sends_until: Instant,
    awaits_until: Instant,
    sent: u32,
    answered: u32,
    /// What each place gave, of requests that are not with the buyer.
    made: BTreeMap<u32, Made>,
    /// The next request whose outputs are fetched.
    next: u32,
    fetching: FuturesOrdered<Fetching<'r>>,
    /// What its maker could not hand to another provider.
    relaying: FuturesUnordered<BoxFuture<'r, Result<(), JobError>>>,
    /// Which they were: request, name and who waits for it.
    untaken: BTreeSet<(Option<u32>, String, LeaseId)>,
    /// Inputs given and outputs told of, by place.
    given: BTreeSet<ContentId>,
    told: Vec<BTreeSet<ContentId>>,
    /// No more is sent.
    over: bool,
    /// An answer did not come.
    gap: bool,
    /// What was made for the first request of which two runs do not agree.
    disputed: Option<Made>,
    failed: Option<JobError>,
    /// What a provider did not receive: its own fault or another one's.
    stalled: Option<JobError>,
    sessions: BTreeMap<usize, Session>,
}

impl<'a> Streaming<'a> {
    pub(in crate::buyer) fn new(
        course: Course<'a>,
        requests: Requests,
        answers: mpsc::Sender<Answer>,
    ) -> Streaming<'a> {
        Streaming {
            course,
            requests,
            answers,
            waiting: VecDeque::new(),
            drained: false,
            answered: 0,
        }
    }

    /// Runs to the last request, from a quote for all of them if there is one yet.
    pub(in crate::buyer) async fn complete(
        mut self,
        quote: Option<Quote>,
    ) -> Result<Finished, (JobError, Vec<String>)> {
        let ended = self.rounds(quote).await;
        while self.course.refusing.join_next().await.is_some() {}
        match ended {
            Ok(()) => Ok(self.course.finish()),
            Err(error) => Err((error, self.course.failures)),
        }
    }

    async fn rounds(&mut self, mut quote: Option<Quote>) -> Result<(), JobError> {
        let waiting_until = Instant::now() + self.course.limits.wait;
        self.course.serve_weights()?;
        while self.has_more().await {
            let planned = match quote.take() {
                Some(quote) => quote,
                None => {
                    let limits = self.limits_left().await?;
                    let graph = self.course.graph.clone();
                    self.course.buyer.requote(graph, &limits).await?
                }
            };
            match self.round(&planned).await {
                Ok(()) => {}
                // Another buyer was faster.
                Err(JobError::Unsold(_)) if Instant::now() < waiting_until => {}
                Err(error) => self.course.on_failure(error).await?,
            }
        }
        Ok(())
    }

    /// Whether a request is there that is not answered, or comes.
    async fn has_more(&mut self) -> bool {
        if self.answers.is_closed() {
            return false;
        }
        if self.waiting.is_empty() && !self.drained {
            let next = self.requests.inputs.recv().await;
            self.on_request(next);
        }
        !self.waiting.is_empty()
    }

    fn on_request(&mut self, next: Option<BTreeMap<String, Tensor>>) {
        self.drained = next.is_none();
        self.waiting.extend(next);
    }

    fn window(&self) -> u32 {
        self.requests.window.clamp(1, WINDOW_MAX)
    }

    async fn limits_left(&self) -> Result<Limits, JobError> {
        let mut limits = self.course.limits_left().await?;
        limits.requests = self.requests.count.saturating_sub(self.answered).max(1);
        if self.course.failures.is_empty() {
            // A round after a full one is spread as that was.
            limits.providers_min = self.course.limits.providers_min;
        }
        Ok(limits)
    }

    async fn round(&mut self, quote: &Quote) -> Result<(), JobError> {
        let bought = self.course.lease(quote).await?;
        let done = self.under_leases(quote, &bought).await;
        if done.is_err() {
            purchase::end(self.course.buyer, self.course.unsettled(&bought)).await;
        }
        done
    }

    async fn under_leases(&mut self, quote: &Quote, bought: &Bought) -> Result<(), JobError> {
        let buyer = self.course.buyer;
        let first = self.waiting.front().expect("a round begins with a request");
        let starts = self.course.starts(quote, bought, first).await?;
        let first_end = bought.trades.iter().map(|trade| trade.deadline.0).min();
        let deadline = self.course.deadline(first_end);
        let progress = self.course.progress;
        let (floor, acceptances, go) = Floor::new(buyer, bought.trades.len(), deadline, progress);
        let mut round = Round::new(buyer, quote, bought, &starts)?;
        let (heard, hearing) = mpsc::channel(WORDS_MAX);
        let mut running = JoinSet::new();
        for (place, start) in starts.into_iter().enumerate() {
            let (tell, words) = mpsc::channel(WORDS_MAX);
            round.words.push(tell);
            let line = Line {
                place,
                words,
                heard: heard.clone(),
            };
            let (provider, floor) = (bought.trades[place].provider, floor.clone());
            let talk = async move { (place, floor.converse(provider, start, Some(line)).await) };
            running.spawn(talk);
        }
        drop((floor, heard));
        self.follow(&mut round, &mut running, (acceptances, go), hearing)
            .await?;
        self.settle(round).await
    }

    /// Keeps the line filled and takes what comes off it, until every conversation is over.
    async fn follow(
        &mut self,
        round: &mut Round<'_>,
        running: &mut JoinSet<(usize, Result<Session, JobError>)>,
        (mut acceptances, go): (mpsc::Receiver<Aloud>, watch::Sender<bool>),
        mut hearing: mpsc::Receiver<Heard>,
    ) -> Result<(), JobError> {
        let all = round.words.len();
        let mut accepted = 0;
        loop {
            self.fill(round)?;
            let (until, is_last) = match round.sends_until > Instant::now() {
                true => (round.sends_until, false),
                false => (round.awaits_until, true),
            };
            let room = self.waiting.len() < self.window() as usize && !self.drained;
            tokio::select! {
                Some(Aloud::Accepted) = acceptances.recv() => {
                    accepted += 1;
                    if accepted == all {
                        // Conversations that ended meanwhile need no start.
                        let _ = go.send(true);
                    }
                }
                next = self.requests.inputs.recv(), if room && !round.over => self.on_request(next),
                Some((place, said)) = hearing.recv() => round.on_said(place, said),
                Some(fetched) = round.fetching.next() => self.on_fetched(round, fetched).await,
                Some(relayed) = round.relaying.next() => match relayed {
                    // Once nothing more is sent, nobody waits for it.
                    Err(error) if !round.over => drop(round.failed.get_or_insert(error)),
                    _ => {}
                },
                () = sleep_until(until), if !round.over => match is_last {
                    false => round.requests_max = round.sent,
                    true => round.on_time_over(),
                },
                ended = running.join_next() => match ended {
                    None => break,
                    Some(ended) => {
                        round.on_ended(ended);
                        if round.failed.is_some() && accepted < all {
                            running.abort_all();
                        }
                    }
                },
            }
        }
        // What the last conversations said, and what is still on its way.
        while let Ok((place, said)) = hearing.try_recv() {
            round.on_said(place, said);
        }
        while let Some(fetched) = round.fetching.next().await {
            self.on_fetched(round, fetched).await;
        }
        Ok(())
    }

    /// Sends as many requests as the window allows; says when no more come.
    fn fill(&mut self, round: &mut Round<'_>) -> Result<(), JobError> {
        loop {
            let under_way = round.sent - round.answered;
            let next = self.waiting.get(under_way as usize);
            let full = round.sent >= round.requests_max;
            let room = under_way < self.window() && !round.over && !full;
            if let Some(inputs) = next.filter(|_| room) {
                round.send(inputs)?;
                continue;
            }
            let last = under_way == 0 && (full || (self.drained && next.is_none()));
            let broken = round.failed.is_some() || round.stalled.is_some();
            if last || broken || round.disputed.is_some() {
                round.end();
            }
            return Ok(());
        }
    }

    /// Gives an answer on. After one that did not come none is given: answers come in order.
    async fn on_fetched(&mut self, round: &mut Round<'_>, fetched: Result<Fetched, JobError>) {
        match fetched {
            Ok(fetched) if round.gap => drop(fetched),
            Ok(Fetched::Differs(made)) => {
                round.gap = true;
                round.disputed = Some(made);
            }
            Ok(Fetched::Answer(outputs)) => {
                if let Err(error) = self.note(round, &outputs) {
                    round.gap = true;
                    round.failed.get_or_insert(error);
                    return;
                }
                let number = self.answered;
                if self.answers.send(Answer { number, outputs }).await.is_err() {
                    // Nobody wants more.
                    round.end();
                }
                self.waiting.pop_front();
                self.answered += 1;
                round.answered += 1;
            }
            Err(error) => {
                round.gap = true;
                round.failed.get_or_insert(error);
            }
        }
    }

    /// Notes the answer to the oldest request, if there is a journal.
    fn note(&self, round: &Round<'_>, outputs: &BTreeMap<String, Tensor>) -> Result<(), JobError> {
        let Some(journal) = &self.course.journal else {
            return Ok(());
        };
        let asked = self.waiting.front();
        let asked = asked.expect("a request waits until it is answered");
        let made = outputs.iter();
        let noted = Noted {
            request: journal::request_id(asked),
            job: round.bought.job,
            outputs: made.map(|(name, made)| (name.clone(), made.id())).collect(),
        };
        Ok(journal.note(&noted)?)
    }

    /// Signs and pays what was done well.
    async fn settle(&mut self, mut round: Round<'_>) -> Result<(), JobError> {
        let mut paid = Vec::new();
        let told = round.told.iter().flatten();
        let given: BTreeSet<ContentId> = round.given.iter().chain(told).copied().collect();
        for session in round.sessions.values_mut() {
            session.given = given.clone();
            session.untold_max = self.requests.window.clamp(1, WINDOW_MAX) as usize;
        }
        for (place, objection) in round.objections() {
            let provider = round.bought.trades[place].provider;
            let error = JobError::Receipt {
                provider,
                objection,
            };
            self.course.refuse(&mut round.sessions, place, &error);
            round.failed.get_or_insert(error);
        }
        self.judge(&mut round).await?;
        paid.extend(std::mem::take(&mut round.sessions).into_values());
        self.course.settle(paid).await?;
        round.failed.or(round.stalled).map_or(Ok(()), Err)
    }

    /// Has a third provider run what two disagree about; who disagrees with it is not paid.
    async fn judge(&mut self, round: &mut Round<'_>) -> Result<(), JobError> {
        let Some(made) = round.disputed.take() else {
            return Ok(());
        };
        let asked = self.waiting.front();
        let asked = asked.expect("a request waits until it is answered");
        let run = |(place, outputs): (&usize, _)| {
            let parts = round.bought.parts(round.quote, *place).count();
            let party = round.parties[*place];
            let run = Run {
                party,
                outputs,
                parts,
            };
            (*place, run)
        };
        let made_by = made.iter().map(|(place, made)| (place, made.as_slice()));
        let runs = made_by.map(run).collect();
        let judging = self.course.judge(round.quote, round.bought, asked, &runs);
        let verdict = judging.await?;
        if verdict.outvoted.is_empty() {
            // Each agrees with the third, if not with the other: the first is as good.
            let firsts = made.into_iter();
            let firsts = firsts.filter(|(place, _)| *place < round.bought.firsts);
            let answer = round.fetch(firsts.collect()).await;
            round.gap = false;
            self.on_fetched(round, answer).await;
        }
        for (place, error) in verdict.outvoted {
            self.course.refuse(&mut round.sessions, place, &error);
            round.failed.get_or_insert(error);
        }
        Ok(())
    }
}

impl<'r> Round<'r> {
    /// A round whose first request is in the starts.
    fn new(
        buyer: &'r Buyer,
        quote: &'r Quote,
        bought: &'r Bought,
        starts: &[Start],
    ) -> Result<Round<'r>, JobError> {
        let mut parties = Vec::with_capacity(starts.len());
        for trade in &bought.trades {
            let peer = key::peer_of(&trade.provider.0);
            let lost = |_| JobError::Lost(trade.provider);
            parties.push((trade.provider, peer.map_err(lost)?));
        }
        let tensors = starts.iter().map(tensors_each).max().unwrap_or(0);
        let first_end = bought.trades.iter().map(|trade| trade.deadline.0).min();
        let left = Duration::from_millis(first_end.unwrap_or(0).saturating_sub(unix_ms()));
        let now = Instant::now();
        Ok(Round {
            buyer,
            quote,
            bought,
            parties,
            words: Vec::new(),
            requests_max: (Receipt::TENSORS_MAX / tensors.max(1)).max(1) as u32,
            sends_until: now + left.mul_f64(SENT_WITHIN),
            awaits_until: now + left.mul_f64(AWAITED_WITHIN),
            sent: 1,
            answered: 0,
            made: BTreeMap::new(),
            next: 0,
            fetching: FuturesOrdered::new(),
            relaying: FuturesUnordered::new(),
            untaken: BTreeSet::new(),
            given: BTreeSet::new(),
            told: vec![BTreeSet::new(); starts.len()],
            over: false,
            gap: false,
            disputed: None,
            failed: None,
            stalled: None,
            sessions: BTreeMap::new(),
        })
    }

    /// Sends one more request to each provider: the inputs that its parts read.
    fn send(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<(), JobError> {
        let store = self.buyer.tensors.store();
        let mut ids = BTreeMap::new();
        for (name, tensor) in inputs {
            ids.insert(name.as_str(), store.put_tensor(tensor)?);
        }
        self.given.extend(ids.values());
        for (place, words) in self.words.iter().enumerate() {
            let parts = self.bought.parts(self.quote, place);
            let boundaries = parts.flat_map(|(_, part)| &part.inputs);
            let own = boundaries.filter(|boundary| boundary.from.is_none());
            let names: BTreeSet<&str> = own.map(|boundary| boundary.name.as_str()).collect();
            let read = names.into_iter().map(|name| (name.to_owned(), ids[name]));
            let request = Request {
                number: self.sent,
                inputs: read.collect(),
            };
            // There is room for the whole window; who has gone is heard of.
            let _ = words.try_send(Closing::Next(request));
        }
        self.sent += 1;
        Ok(())
    }

    /// Says to all that no request comes any more.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            for words in &self.words {
                let _ = words.try_send(Closing::Over);
            }
        }
    }

    /// The leases are about to end: what was not answered is for the next round, unless it would be
    /// no better.
    fn on_time_over(&mut self) {
        if self.answered == 0 {
            let made = self.made.get(&self.next);
            let silent = |place: &usize| made.is_none_or(|made| !made.contains_key(place));
            let slow = (0..self.words.len()).find(silent).unwrap_or(0);
            let late = dispatch::broken(self.parties[slow].0, SessionError::Deadline);
            self.failed.get_or_insert(late);
        }
        self.end();
    }

    fn on_said(&mut self, place: usize, said: Said) {
        let answered = match said {
            Said::Answered(answered) => answered,
            Said::Untaken(untaken) => {
                let of = untaken.request.filter(|request| *request < self.sent);
                let what = (of, untaken.offer.name.clone(), untaken.offer.to);
                if of.is_some() && self.untaken.insert(what) {
                    let (buyer, maker) = (self.buyer, self.parties[place]);
                    self.relaying
                        .push(Box::pin(relay::relay(buyer, maker, *untaken)));
                }
                return;
            }
            Said::Stalled(failure) => {
                let stalled = self.stalled_by(self.parties[place].0, failure);
                self.stalled.get_or_insert(stalled);
                return;
            }
        };
        if answered.request < self.next || answered.request >= self.sent {
            // Said twice, or of nothing that was asked: its receipt is checked all the same.
            return;
        }
        self.told[place].extend(answered.outputs.iter().map(|(_, id)| *id));
        let made = self.made.entry(answered.request).or_default();
        made.insert(place, answered.outputs);
        while self
            .made
            .get(&self.next)
            .is_some_and(|made| made.len() == self.words.len())
        {
            let made = self.made.remove(&self.next).unwrap_or_default();
            self.next += 1;
            self.fetching.push_back(self.fetch(made));
        }
    }

    /// What it means that a provider begins nothing more.
    fn stalled_by(&self, provider: AccountKey, failure: Failure) -> JobError {
        match failure {
            Failure::Expired | Failure::Stopping => JobError::Reclaimed {
                provider,
                done: self.answered as usize,
                all: self.sent as usize,
                what: "requests",
            },
            failure => JobError::Provider { provider, failure },
        }
    }

    fn fetch(&self, made: Made) -> Fetching<'r> {
        let of = (self.buyer, self.quote, self.bought);
        Box::pin(fetched::fetch(of, self.parties.clone(), made))
    }

    fn on_ended(&mut self, ended: Result<(usize, Result<Session, JobError>), JoinError>) {
        match ended {
            Err(stopped) => assert!(stopped.is_cancelled(), "a conversation does not panic"),
            Ok((place, Ok(session))) => drop(self.sessions.insert(place, session)),
            Ok((_, Err(error))) => drop(self.failed.get_or_insert(error)),
        }
    }

    /// Sessions whose receipts are not what was bought, or do not name what was given for them.
    fn objections(&self) -> Vec<(usize, Objection)> {
        let check = |(place, session): (&usize, &Session)| {
            let trade = &self.bought.trades[*place];
            let named: BTreeSet<ContentId> =
                session.finished.outputs.iter().map(|(_, id)| *id).collect();
            let checked = settle::check(session, trade, &self.sessions);
            let checked = checked.and_then(|()| match named.is_superset(&self.told[*place]) {
                true => Ok(()),
                false => Err(Objection::Outputs),
            });
            Some((*place, checked.err()?))
        };
        self.sessions.iter().filter_map(check).collect()
    }
}

/// The most tensors that one request adds to the inputs or to the outputs of a lease's receipt.
fn tensors_each(start: &Start) -> usize {
    let inputs = start.parts.iter().flat_map(|part| &part.inputs);
    let outside = inputs.filter(|input| !matches!(input.source, Source::Own));
    let names: BTreeSet<&str> = outside.map(|input| input.name.as_str()).collect();
    let outputs: usize = start.parts.iter().map(|part| part.outputs.len()).sum();
    names.len().max(outputs)
}
