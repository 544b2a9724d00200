//! The run: every provider is told its parts, starts together, and is heard to the end.

pub mod connection;
mod enough;
pub mod relay;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::AsyncReadExt;
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::{AccountKey, LeaseId};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::purchase::Bought;
use super::reasons::SessionError;
use super::session::Session;
use super::{Buyer, JobError, Progress, Quote, lineage};
use crate::buyer::dispatch::connection::Line;
use crate::buyer::dispatch::enough::{done, hear};
use crate::buyer::messages::Voice;
use crate::clock::unix_ms;
use crate::folder::key;
use crate::network::wire::{self, WireError};
use crate::network::{Network, OpenError};
use crate::protocols::lease::{Event, Go, Opening, PROTOCOL, Start, Untaken};

pub(super) use told::{find, starts};

/// A part may run for its planned time this many times over, and the allowance: a plan is made of
/// peak figures, and machines are shared.
const RUN_MARGIN: u32 = 20;
pub(super) const RUN_ALLOWANCE: Duration = Duration::from_secs(5);

/// How often a provider is asked whether work that it goes on with alone is done.
const RESUME_PERIOD: Duration = Duration::from_millis(100);

/// What came of a run: who is done, and what went wrong first.
pub(super) struct Ran {
    /// The sessions that are done, by the place of their trade.
    pub(super) sessions: BTreeMap<usize, Session>,
    /// Why the others are not.
    pub(super) failed: Option<JobError>,
}

/// What all conversations of a job share.
#[derive(Clone)]
pub(super) struct Floor {
    network: Network,
    progress: mpsc::Sender<Progress>,
    /// What all are to know.
    aloud: mpsc::Sender<Aloud>,
    /// True once all have.
    go: watch::Receiver<bool>,
    /// How many of its parts a provider is still to run, once others that it waits for failed.
    enough: watch::Receiver<Option<usize>>,
    deadline: Deadline,
}

/// What a provider says that concerns the others.
pub(super) enum Aloud {
    /// It has accepted its lease.
    Accepted,
    /// Another one did not take a tensor from it.
    Untaken(Box<Untaken>),
}

/// When a run is over at the latest, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// The first lease to end, in milliseconds since 1970.
    pub(super) lease_ms: u64,
    /// The job's own deadline and what it was asked to take, if it has one.
    pub(super) job: Option<(u64, Duration)>,
}

impl Deadline {
    fn left(&self) -> Duration {
        let job = self.job.map_or(u64::MAX, |(at, _)| at);
        Duration::from_millis(self.lease_ms.min(job).saturating_sub(unix_ms()))
    }

    /// The error of whoever was not done in time.
    fn over(&self, provider: AccountKey) -> JobError {
        match self.job {
            Some((at, wanted)) if at <= self.lease_ms => JobError::Late(wanted),
            _ => broken(provider, SessionError::Deadline),
        }
    }
}

/// Has every part run that can be run: where a provider fails, those that do not wait for it go on.
pub(super) async fn run(
    buyer: &Buyer,
    quote: &Quote,
    bought: &Bought,
    starts: Vec<Start>,
    deadline: Deadline,
    progress: &mpsc::Sender<Progress>,
) -> Ran {
    let all = bought.trades.len();
    let (floor, mut heard, start_all) = Floor::new(buyer, all, deadline, progress);
    let mut round = Round {
        quote,
        bought,
        parts: starts.iter().map(|start| start.parts.len()).collect(),
        others: Vec::with_capacity(all),
        accepted: 0,
        ended: BTreeMap::new(),
        ran: Ran {
            sessions: BTreeMap::new(),
            failed: None,
        },
    };
    let mut running = JoinSet::new();
    for (place, start) in starts.into_iter().enumerate() {
        let provider = bought.trades[place].provider;
        let (tell, enough) = watch::channel(None);
        let floor = Floor {
            enough,
            ..floor.clone()
        };
        let talk = async move { (place, floor.converse(provider, start, None).await) };
        let handle = running.spawn(talk);
        round.others.push(Other { tell, handle });
    }
    drop(floor);
    let mut relaying = JoinSet::new();
    loop {
        let ended = tokio::select! {
            Some(said) = heard.recv() => {
                match said {
                    Aloud::Accepted => round.accepted += 1,
                    Aloud::Untaken(untaken) => drop(relaying.spawn(round.relay(buyer, *untaken))),
                }
                if round.accepted == all {
                    // Conversations that ended meanwhile need no start.
                    let _ = start_all.send(true);
                }
                continue;
            }
            Some(relayed) = relaying.join_next() => {
                if let Ok(Err(error)) = relayed {
                    round.on_untaken(error);
                }
                continue;
            }
            ended = running.join_next() => ended,
        };
        match ended {
            None => return round.ran,
            Some(Err(stopped)) => assert!(stopped.is_cancelled(), "a conversation does not panic"),
            Some(Ok((place, Ok(session)))) => round.on_finished(place, session),
            Some(Ok((place, Err(error)))) => round.on_failed(place, 0, error),
        }
    }
}

/// Where a run stands.
struct Round<'a> {
    quote: &'a Quote,
    bought: &'a Bought,
    /// How many parts each place is to run.
    parts: Vec<usize>,
    others: Vec<Other>,
    /// How many have accepted.
    accepted: usize,
    /// Conversations that are over, by place, and how many parts were run.
    ended: BTreeMap<usize, usize>,
    ran: Ran,
}

impl Round<'_> {
    fn on_finished(&mut self, place: usize, session: Session) {
        let (provider, done) = (session.provider, session.start.parts.len());
        let parts = self.parts[place];
        self.ran.sessions.insert(place, session);
        if done == parts || self.others[place].was_told(parts) {
            self.ended.insert(place, done);
            return;
        }
        let reclaimed = JobError::Reclaimed {
            provider,
            done,
            all: parts,
            what: "parts",
        };
        self.on_failed(place, done, reclaimed);
    }

    /// Hands on what its maker could not.
    fn relay(
        &self,
        buyer: &Buyer,
        untaken: Untaken,
    ) -> impl Future<Output = Result<(), JobError>> + Send + use<> {
        let mut trades = self.bought.trades.iter();
        let maker = trades.find(|trade| trade.lease == untaken.offer.from);
        let maker = maker.map(|trade| trade.provider);
        let buyer = buyer.clone();
        async move {
            let maker = maker.expect("a conversation is about a lease of the round");
            let peer = key::peer_of(&maker.0);
            let peer = peer.map_err(|error| broken(maker, OpenError::from(error).into()))?;
            relay::relay(&buyer, (maker, peer), untaken).await
        }
    }

    /// What could not be handed on: who is to blame is not waited for.
    fn on_untaken(&mut self, error: JobError) {
        let culprit = error.culprit();
        let mut trades = self.bought.trades.iter();
        let place = trades.position(|trade| Some(trade.provider) == culprit);
        let waited_for = |place: &usize| {
            // Who was told to run less may not want it any more.
            !self.ended.contains_key(place) && !self.others[*place].was_told(self.parts[*place])
        };
        let Some(place) = place.filter(waited_for) else {
            return;
        };
        self.others[place].handle.abort();
        self.on_failed(place, 0, error);
    }

    /// Lets the others run what they still can.
    fn on_failed(&mut self, place: usize, done: usize, error: JobError) {
        self.ended.insert(place, done);
        let left = match self.accepted < self.others.len() {
            // Nobody has begun.
            true => vec![0; self.others.len()],
            false => lineage::runnable(self.quote, self.bought, &self.ended),
        };
        for (other, parts) in self.others.iter().zip(left) {
            other.go_on(parts);
        }
        self.ran.failed.get_or_insert(error);
    }
}

/// A conversation as the others see it.
struct Other {
    tell: watch::Sender<Option<usize>>,
    handle: AbortHandle,
}

impl Other {
    /// Lets it run so many of its parts and no more; none is not worth waiting for.
    fn go_on(&self, parts: usize) {
        if parts == 0 {
            self.handle.abort();
        }
        // One that has ended needs no word.
        self.tell.send_replace(Some(parts));
    }

    /// Whether it was told to run fewer parts than these.
    fn was_told(&self, parts: usize) -> bool {
        self.tell.borrow().is_some_and(|wanted| wanted < parts)
    }
}

impl Floor {
    /// The floor of so many providers, who is told of each that accepts, and what starts them all.
    pub(super) fn new(
        buyer: &Buyer,
        all: usize,
        deadline: Deadline,
        progress: &mpsc::Sender<Progress>,
    ) -> (Floor, mpsc::Receiver<Aloud>, watch::Sender<bool>) {
        let (aloud, heard) = mpsc::channel(all);
        let (start_all, go) = watch::channel(false);
        let (network, progress) = (buyer.network.clone(), progress.clone());
        // Whoever may be told that there is enough is given another.
        let (_, enough) = watch::channel(None);
        let floor = Floor {
            network,
            progress,
            aloud,
            go,
            enough,
            deadline,
        };
        (floor, heard, start_all)
    }

    /// Talks to one provider to the end of its work; with a line, about many requests.
    pub(super) async fn converse(
        self,
        provider: AccountKey,
        start: Start,
        line: Option<Line>,
    ) -> Result<Session, JobError> {
        let deadline = self.deadline;
        let talking = self.talk(provider, start, line);
        let talking = tokio::time::timeout(deadline.left(), talking).await;
        talking.unwrap_or_else(|_| Err(deadline.over(provider)))
    }

    /// Reaches a provider and starts its work, that of one request or of many.
    async fn open(
        &self,
        provider: AccountKey,
        start: Start,
        is_stream: bool,
    ) -> Result<(PeerId, Box<Start>, Stream), JobError> {
        let broken = |cause| broken(provider, cause);
        let peer =
            key::peer_of(&provider.0).map_err(|error| broken(OpenError::from(error).into()))?;
        let opened = self.network.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| broken(error.into()))?;
        let start = Box::new(start);
        let opening = match is_stream {
            false => Opening::Start(start),
            true => Opening::Stream(start),
        };
        let sent = wire::send(&mut stream, &opening).await;
        sent.map_err(|error| broken(error.into()))?;
        let (Opening::Start(start) | Opening::Stream(start)) = opening else {
            unreachable!("it was made one of them above")
        };
        Ok((peer, start, stream))
    }

    async fn talk(
        mut self,
        provider: AccountKey,
        start: Start,
        mut line: Option<Line>,
    ) -> Result<Session, JobError> {
        let broken = |cause| broken(provider, cause);
        let (peer, start, stream) = self.open(provider, start, line.is_some()).await?;
        let (mut reader, writer) = stream.split();
        let mut voice = Voice::new(writer);
        let (mut patience, mut enough) = (None, None);
        let mut untaken_before = BTreeSet::new();
        loop {
            let halves = (&mut reader, voice.writer());
            let heard = hear(halves, patience, &mut enough).await;
            let event = heard.map_err(broken)?;
            patience = match &event {
                Event::Running { part } => Some(patience_with(&start, part)),
                _ => None,
            };
            match event {
                Event::Failed(failure) => return Err(JobError::Provider { provider, failure }),
                Event::Finished(finished) => {
                    self.tell(Progress::Finished { provider }).await;
                    let stream = reader.reunite(voice.keep()).expect("halves of one stream");
                    let start = done(*start, &finished);
                    return Ok(Session::new((provider, peer), start, stream, *finished));
                }
                Event::Compiled => {
                    self.tell(Progress::Compiled { provider }).await;
                    let all = self.go.wait_for(|go| *go).await;
                    all.map_err(|_| broken(SessionError::Stopped))?;
                    let sent = wire::send(voice.writer(), &Go::Ahead).await;
                    sent.map_err(|error| broken(error.into()))?;
                    voice.begin();
                    if let Some(line) = line.take() {
                        let (stream, finished) =
                            line.follow(provider, &start, (reader, voice)).await?;
                        self.tell(Progress::Finished { provider }).await;
                        let party = (provider, peer);
                        return Ok(Session::new(party, *start, stream, finished));
                    }
                    // Now there is work to stop.
                    enough = Some((self.enough.clone(), start.parts.len()));
                }
                Event::Accepted => drop(self.aloud.send(Aloud::Accepted).await),
                Event::Untaken(untaken) if is_news(&untaken, &start, &mut untaken_before) => {
                    drop(self.aloud.send(Aloud::Untaken(untaken)).await);
                }
                Event::Answered(_) | Event::Stalled(_) | Event::Untaken(_) => {
                    return Err(broken(SessionError::Confused));
                }
                Event::Ran => {}
                Event::Fetched {
                    pieces,
                    held,
                    bytes,
                } => {
                    self.tell(Progress::Fetched {
                        provider,
                        pieces,
                        held,
                        bytes,
                    })
                    .await;
                }
                Event::Running { part } => self.tell(Progress::Running { provider, part }).await,
            }
        }
    }

    async fn tell(&self, progress: Progress) {
        // Progress is for eyes: a reader that went away stops nothing.
        let _ = self.progress.send(progress).await;
    }
}

/// Whether a provider may say so of its work, and has not before: whoever says it without end is
/// not listened to.
fn is_news(untaken: &Untaken, start: &Start, before: &mut BTreeSet<(String, LeaseId)>) -> bool {
    let what = (untaken.offer.name.clone(), untaken.offer.to);
    untaken.is_of(start) && before.insert(what)
}

/// Waits for an event, no longer than the part that runs may take.
pub(super) async fn within(
    patience: Option<Duration>,
    event: impl Future<Output = Result<Event, WireError>>,
) -> Result<Event, SessionError> {
    match patience {
        None => Ok(event.await?),
        Some(patience) => match tokio::time::timeout(patience, event).await {
            Ok(event) => Ok(event?),
            Err(_) => Err(SessionError::Slow { patience }),
        },
    }
}

/// How long a part of a lease may run.
pub(super) fn patience_with(start: &Start, part: &str) -> Duration {
    let expected = start.parts.iter().find(|known| known.name == *part);
    patience(expected.map_or(Duration::ZERO, |part| part.expected))
}

/// How long work may take that is expected to take so long: plans err, but not by so much.
pub(super) fn patience(expected: Duration) -> Duration {
    expected * RUN_MARGIN + RUN_ALLOWANCE
}

/// Takes up the conversation about a lease again, whose work another process of this buyer began.
pub(super) async fn resume(
    buyer: &Buyer,
    provider: AccountKey,
    start: Start,
    deadline: Deadline,
) -> Result<Session, JobError> {
    let broken = |cause| broken(provider, cause);
    let asking = async {
        let peer =
            key::peer_of(&provider.0).map_err(|error| broken(OpenError::from(error).into()))?;
        loop {
            let opened = buyer.network.open(peer, PROTOCOL).await;
            let mut stream = opened.map_err(|error| broken(error.into()))?;
            let sent = wire::send(&mut stream, &Opening::Resume(start.lease)).await;
            sent.map_err(|error| broken(error.into()))?;
            let event = wire::receive(&mut stream).await;
            match event.map_err(|error| broken(error.into()))? {
                Event::Finished(finished) => {
                    let start = done(start, &finished);
                    return Ok(Session::new((provider, peer), start, stream, *finished));
                }
                Event::Accepted => tokio::time::sleep(RESUME_PERIOD).await,
                Event::Failed(failure) => return Err(JobError::Provider { provider, failure }),
                _ => return Err(broken(SessionError::Confused)),
            }
        }
    };
    let asked = tokio::time::timeout(deadline.left(), asking).await;
    asked.unwrap_or_else(|_| Err(deadline.over(provider)))
}

pub(super) fn broken(provider: AccountKey, cause: SessionError) -> JobError {
    JobError::Session {
        provider,
        cause: Box::new(cause),
    }
}
