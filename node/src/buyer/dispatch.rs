//! The run: every provider is told its parts, starts together, and is heard to the end.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::{AccountKey, LeaseId};
use souk_memory::ContentId;
use souk_scheduler::cut::{self, Boundary, Subgraph};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::purchase::Bought;
use super::{Buyer, JobError, Progress, Quote};
use crate::contact::Contact;
use crate::job::Job;
use crate::key;
use crate::lease_protocol::{
    Event, Finished, Go, Input, Opening, Output, PROTOCOL, Part, Source, Start,
};
use crate::network::{Network, OpenError};
use crate::trader::unix_ms;
use crate::wire::{self, WireError};

/// A provider that was reached and whose work is done; it waits for the signature.
pub(super) struct Session {
    pub(super) provider: AccountKey,
    pub(super) peer: PeerId,
    pub(super) start: Start,
    pub(super) stream: Stream,
    pub(super) finished: Finished,
}

/// Why a conversation with a provider ended before its work was done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It was not reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It went away, or spoke nonsense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The lease ended first.
    #[error("its lease ended before its work was done")]
    Deadline,
    /// It said things in the wrong order.
    #[error("it spoke out of turn: is it an older or newer souk?")]
    Confused,
    /// Another provider of the job failed.
    #[error("the job was stopped")]
    Stopped,
}

/// What all conversations of a job share.
#[derive(Clone)]
struct Floor {
    network: Network,
    progress: mpsc::Sender<Progress>,
    /// One message for each provider that has accepted.
    accepted: mpsc::Sender<()>,
    /// True once all have.
    go: watch::Receiver<bool>,
    deadline_ms: u64,
}

/// Has every part run. The sessions come in the order of the trades.
pub(super) async fn run(
    buyer: &Buyer,
    job: &Job,
    quote: &Quote,
    bought: &Bought,
    progress: &mpsc::Sender<Progress>,
) -> Result<Vec<Session>, JobError> {
    let inputs = serve_content(buyer, job, quote)?;
    let contacts = find(buyer, bought).await?;
    let (accepted, mut acceptances) = mpsc::channel(bought.trades.len());
    let (start_all, go) = watch::channel(false);
    let deadline_ms = bought
        .trades
        .iter()
        .map(|trade| trade.deadline.0)
        .min()
        .unwrap_or(0);
    let (network, progress) = (buyer.network.clone(), progress.clone());
    let floor = Floor {
        network,
        progress,
        accepted,
        go,
        deadline_ms,
    };
    let mut running = JoinSet::new();
    for place in 0..bought.trades.len() {
        let start = start_of(quote, bought, place, &inputs, &contacts);
        let provider = bought.trades[place].provider;
        let floor = floor.clone();
        running.spawn(async move { (place, floor.converse(provider, start).await) });
    }
    drop(floor);
    let all = bought.trades.len();
    tokio::spawn(async move {
        let mut count = 0;
        while acceptances.recv().await.is_some() {
            count += 1;
            if count == all {
                // Conversations that ended meanwhile need no start.
                let _ = start_all.send(true);
            }
        }
    });
    let mut sessions = BTreeMap::new();
    while let Some(ended) = running.join_next().await {
        // The others are aborted when `running` is dropped with an error returned.
        let (place, session) = ended.expect("a conversation does not panic");
        sessions.insert(place, session?);
    }
    Ok(sessions.into_values().collect())
}

impl Floor {
    async fn converse(self, provider: AccountKey, start: Start) -> Result<Session, JobError> {
        let left = Duration::from_millis(self.deadline_ms.saturating_sub(unix_ms()));
        let talking = tokio::time::timeout(left, self.talk(provider, start)).await;
        talking.unwrap_or_else(|_| Err(broken(provider, SessionError::Deadline)))
    }

    async fn talk(mut self, provider: AccountKey, start: Start) -> Result<Session, JobError> {
        let broken = |cause| broken(provider, cause);
        let peer =
            key::peer_of(&provider.0).map_err(|error| broken(OpenError::from(error).into()))?;
        let opened = self.network.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| broken(error.into()))?;
        let opening = Opening::Start(Box::new(start));
        wire::send(&mut stream, &opening)
            .await
            .map_err(|error| broken(error.into()))?;
        let Opening::Start(start) = opening else {
            unreachable!("it was made one above")
        };
        let start = *start;
        loop {
            let event = wire::receive(&mut stream)
                .await
                .map_err(|error| broken(error.into()))?;
            match event {
                Event::Failed(failure) => return Err(JobError::Provider { provider, failure }),
                Event::Finished(finished) => {
                    self.tell(Progress::Finished { provider }).await;
                    let finished = *finished;
                    return Ok(Session {
                        provider,
                        peer,
                        start,
                        stream,
                        finished,
                    });
                }
                Event::Accepted => {
                    let _ = self.accepted.send(()).await;
                }
                Event::Compiled => {
                    self.tell(Progress::Compiled { provider }).await;
                    let all = self.go.wait_for(|go| *go).await;
                    all.map_err(|_| broken(SessionError::Stopped))?;
                    let sent = wire::send(&mut stream, &Go::Ahead).await;
                    sent.map_err(|error| broken(error.into()))?;
                }
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

fn broken(provider: AccountKey, cause: SessionError) -> JobError {
    JobError::Session {
        provider,
        cause: Box::new(cause),
    }
}

/// Puts graphs, weights and inputs where providers can fetch them; the inputs' ids by name.
fn serve_content(
    buyer: &Buyer,
    job: &Job,
    quote: &Quote,
) -> Result<BTreeMap<String, ContentId>, JobError> {
    let store = buyer.tensors.store();
    for (id, bytes) in cut::weight_bytes(&quote.graph) {
        if !store.contains(&id) {
            store.put_as(id, bytes)?;
        }
    }
    for part in &quote.parts {
        store.put(part.model.clone())?;
    }
    let put = |(name, tensor): (&String, _)| Ok((name.clone(), store.put_tensor(tensor)?));
    job.inputs.iter().map(put).collect()
}

/// Where the providers are; the network learns it too.
async fn find(buyer: &Buyer, bought: &Bought) -> Result<Vec<Contact>, JobError> {
    let wanted: Vec<AccountKey> = bought.trades.iter().map(|trade| trade.provider).collect();
    let found = buyer.broker().find(&wanted).await?;
    for provider in wanted {
        let contact = found.iter().find(|contact| contact.account == provider.0);
        buyer
            .network
            .learn(contact.ok_or(JobError::Lost(provider))?)
            .await?;
    }
    Ok(found)
}

/// What the provider of the trade at `place` is told.
fn start_of(
    quote: &Quote,
    bought: &Bought,
    place: usize,
    inputs: &BTreeMap<String, ContentId>,
    contacts: &[Contact],
) -> Start {
    let trade = &bought.trades[place];
    let mine = |part: &&Subgraph| bought.place_of(quote, part.part) == place;
    let parts = quote
        .parts
        .iter()
        .enumerate()
        .filter(|(_, part)| mine(part));
    let describe = |(number, part): (usize, &Subgraph)| {
        let planned = &quote.plan.parts[part.part];
        Part {
            name: format!("part {} of {}", number + 1, quote.parts.len()),
            graph: part.id,
            weights: part.weights.iter().map(|weight| weight.id).collect(),
            inputs: part
                .inputs
                .iter()
                .map(|b| input(quote, bought, place, b, inputs))
                .collect(),
            outputs: part
                .outputs
                .iter()
                .map(|b| output(quote, bought, place, b))
                .collect(),
            flops: planned.flops,
            expected: Duration::try_from_secs_f64(planned.busy_seconds).unwrap_or_default(),
        }
    };
    let others = contacts
        .iter()
        .filter(|contact| contact.account != trade.provider.0);
    Start {
        lease: trade.lease,
        job: bought.job,
        parts: parts.map(describe).collect(),
        peers: others.cloned().collect(),
    }
}

fn input(
    quote: &Quote,
    bought: &Bought,
    place: usize,
    boundary: &Boundary,
    inputs: &BTreeMap<String, ContentId>,
) -> Input {
    let source = match boundary.from.map(|part| bought.place_of(quote, part)) {
        None => Source::Buyer(inputs[&boundary.name]),
        Some(maker) if maker == place => Source::Own,
        Some(maker) => {
            let trade = &bought.trades[maker];
            Source::Lease {
                lease: trade.lease,
                provider: trade.provider,
            }
        }
    };
    Input {
        name: boundary.name.clone(),
        source,
    }
}

fn output(quote: &Quote, bought: &Bought, place: usize, boundary: &Boundary) -> Output {
    let readers = boundary.to.iter().map(|part| bought.place_of(quote, *part));
    let mut others: Vec<usize> = readers.filter(|reader| *reader != place).collect();
    others.sort_unstable();
    others.dedup();
    let consumer = |reader: usize| -> (LeaseId, AccountKey) {
        (bought.trades[reader].lease, bought.trades[reader].provider)
    };
    Output {
        name: boundary.name.clone(),
        consumers: others.into_iter().map(consumer).collect(),
    }
}

impl Bought {
    /// The trade that runs a part of the plan.
    pub(super) fn place_of(&self, quote: &Quote, part: usize) -> usize {
        let offer = quote.plan.parts[part].offer;
        let place = self.offers.iter().position(|bought| *bought == offer);
        place.expect("a lease was bought from every offer of the plan")
    }
}
