//! Hearing a provider that may be told to run fewer parts.

use std::time::Duration;

use futures::io::{ReadHalf, WriteHalf};
use libp2p::swarm::Stream;
use tokio::sync::watch;

use crate::buyer::dispatch::{RUN_ALLOWANCE, within};
use crate::buyer::reasons::SessionError;
use crate::network::wire;
use crate::protocols::lease::{Closing, Event, Finished, Start};

/// What tells how many parts are wanted, and how many there are: nothing once that was passed on.
pub(crate) type Enough = Option<(watch::Receiver<Option<usize>>, usize)>;

/// Waits for an event, and tells the provider meanwhile if it is to run fewer parts.
pub(crate) async fn hear(
    (reader, writer): (&mut ReadHalf<Stream>, &mut WriteHalf<Stream>),
    mut patience: Option<Duration>,
    enough: &mut Enough,
) -> Result<Event, SessionError> {
    let receiving = wire::receive(reader);
    tokio::pin!(receiving);
    loop {
        let parts = tokio::select! {
            event = within(patience, &mut receiving) => return event,
            parts = less(enough) => parts,
        };
        *enough = None;
        wire::send(writer, &Closing::Enough { parts }).await?;
        patience.get_or_insert(RUN_ALLOWANCE);
    }
}

/// Waits until a provider is to run fewer than all of its parts; how many.
async fn less(enough: &mut Enough) -> u32 {
    let Some((enough, all)) = enough else {
        return std::future::pending().await;
    };
    let fewer = enough.wait_for(|parts| parts.is_some_and(|parts| parts < *all));
    match fewer.await.map(|parts| parts.map(u32::try_from)) {
        Ok(Some(Ok(parts))) => parts,
        // Nobody fails any more.
        _ => std::future::pending().await,
    }
}

/// The work that a receipt is about: later parts may not have been waited for, or not begun before
/// the lease ended.
pub(crate) fn done(start: Start, finished: &Finished) -> Start {
    let billed = &finished.receipt.body.graph.0;
    let is_billed = |parts: &usize| start.graph_of(*parts).as_bytes() == billed;
    match (1..=start.parts.len()).find(is_billed) {
        Some(parts) => start.first(parts),
        None => start,
    }
}
