//! The steps of a part that others carry out: the device, and the providers that come next.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use souk_market::{AccountKey, LeaseId};
use souk_memory::{ContentId, Tensor};
use souk_scheduler::execution::{Precedence, RunResult, Task};

use super::{Provider, fault};
use crate::executor::LeaseExecutor;
use crate::folder::key;
use crate::network::wire;
use crate::protocols::lease::{Failure, Offer, Opening, Output, PROTOCOL, Part, Taken, Untaken};

/// How long another provider may take to answer an offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Has the device compile the part, unless it did so before.
pub(super) async fn prepare(
    provider: &Provider,
    slots: &LeaseExecutor,
    part: &Part,
) -> Result<(), Failure> {
    let store = provider.tensors.store();
    slots.prepare(store, part.graph, &part.weights).await
}

/// Has the device run the part; `title` is put behind its name.
pub(super) async fn run(
    provider: &Provider,
    slots: &LeaseExecutor,
    part: &Part,
    title: &str,
    inputs: BTreeMap<String, Tensor>,
    precedence: Precedence,
) -> Result<RunResult, Failure> {
    let fault = provider.fault.next();
    fault::before_run(fault).await;
    let task = Task {
        name: format!("{}{title}", part.name),
        model: part.graph,
        inputs,
    };
    let at_work = provider.energy.begin(slots);
    let mut ran = slots.run(task, precedence, fault).await?;
    if let Some(at_work) = at_work {
        at_work.write(&mut ran.report);
    }
    provider.seen.learn(&ran.learned);
    fault::after_run(fault, &mut ran.outputs);
    Ok(ran)
}

/// Tells the providers that wait for an output where it is, all at once; `request` is the one of
/// many that it belongs to. Returned is what was not taken.
pub(super) async fn offer(
    provider: &Provider,
    from: LeaseId,
    output: &Output,
    tensor: ContentId,
    request: Option<u32>,
) -> Vec<Untaken> {
    let offering = output.consumers.iter().map(|(to, consumer)| async move {
        let offer = Offer {
            from,
            to: *to,
            name: output.name.clone(),
            tensor,
        };
        let asking = put(provider, *consumer, offer.clone().opening(request));
        let why = match tokio::time::timeout(OFFER_TIMEOUT, asking).await {
            Ok(Ok(Taken::Yes)) => return None,
            Ok(Ok(Taken::No)) => "it does not wait for it".to_owned(),
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {} s", OFFER_TIMEOUT.as_secs()),
        };
        tracing::warn!(lease = %from, name = offer.name, %consumer, why, "not taken");
        Some(Untaken {
            consumer: *consumer,
            request,
            offer,
            why,
        })
    });
    join_all(offering).await.into_iter().flatten().collect()
}

/// Puts an offer to a peer. The error is a sentence for the buyer.
async fn put(provider: &Provider, to: AccountKey, opening: Opening) -> Result<Taken, String> {
    let peer = key::peer_of(&to.0).map_err(|error| error.to_string())?;
    let opened = provider.network.open(peer, PROTOCOL).await;
    let mut stream = opened.map_err(|error| error.to_string())?;
    let sent = wire::send(&mut stream, &opening).await;
    sent.map_err(|error| error.to_string())?;
    wire::receive(&mut stream)
        .await
        .map_err(|error| error.to_string())
}
