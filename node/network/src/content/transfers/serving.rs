//! Serves content to peers that request it: the sender's side of `/souk/tensor/2`.
//!
//! It checks the access of each peer and limits how fast the peer can send requests. A sender reads
//! its next frame when the one before is on its way, so it prepares at most one frame for a slow or
//! lost receiver.

use std::io;
use std::sync::Arc;

use futures::AsyncWriteExt;
use futures::io::BufReader;
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_folder::key;
use souk_market::AccountKey;
use souk_memory::{ContentId, FRAME_BYTES, Store};
use souk_roles::access::Scope;

use super::protocol::{ContentRequest, REQUEST_BYTES_MAX, WANTS_MAX, look_up, look_up_aside};
use super::{SILENCE_MAX, with_timeout};
use crate::RateLimit;
use crate::content::access::Access;
use crate::content::direct::Channel;
use crate::content::pace::Pacer;
use crate::wire::{self, WireError};

/// How many bytes of answers are gathered before they are written, because many contents are small.
const GATHERED_BYTES: usize = 256 << 10;

/// The length above which content is not copied to be gathered.
const GATHERED_EACH_BYTES: usize = 64 << 10;

/// How much a peer can request at once and each second, over all its streams and direct channels: a
/// content counts 1, each request [`QUESTION_COST`] more, and missing content [`MISS_COST`]. With
/// [`WANTS_MAX`] short contents in a request, 230,000 of them can pass each second.
const ASKED_AT_ONCE: u32 = 1 << 18;
const ASKED_PER_SECOND: u32 = 1 << 18;

/// A request by itself takes as long as some tens of contents in one.
const QUESTION_COST: u32 = 32;

/// The node searches its disk for content that is not in memory.
const MISS_COST: u32 = 32;

/// Serves the content of a node, within its limits.
pub(super) struct ContentServer {
    store: Arc<Store>,
    access: Arc<Access>,
    upload: Pacer,
    rate_limit: RateLimit,
}

impl ContentServer {
    pub(super) fn new(store: Arc<Store>, access: Arc<Access>, upload: Pacer) -> ContentServer {
        ContentServer {
            store,
            access,
            upload,
            rate_limit: RateLimit::new(ASKED_AT_ONCE, ASKED_PER_SECOND),
        }
    }

    /// Returns whether a peer may fetch a content under a job. If not, the answer must be the same
    /// as for missing content.
    fn can_fetch(&self, peer: PeerId, scope: &Scope, id: &ContentId) -> bool {
        let who = key::account_of(&peer).map(AccountKey);
        who.is_some_and(|who| self.access.may_have(scope, who, id))
    }

    /// Returns whether the node limits what it sends.
    pub(super) const fn is_limited(&self) -> bool {
        self.upload.is_limited()
    }

    /// Returns how many bytes the node has sent.
    pub(super) fn bytes_sent(&self) -> u64 {
        self.upload.bytes_passed()
    }
}

/// Returns the cost of a request for `wants` contents, `missing` of which are missing.
fn request_cost(wants: usize, missing: u32) -> u32 {
    let wants = u32::try_from(wants.min(WANTS_MAX)).expect("there is a limit");
    QUESTION_COST + wants + missing * MISS_COST
}

/// Serves a stream until the receiver closes it.
pub(super) async fn on_stream(
    peer: PeerId,
    stream: Stream,
    server: &ContentServer,
) -> Result<(), WireError> {
    let mut stream = BufReader::new(stream);
    let mut gathered = Vec::new();
    while let Some(request) = next(&mut stream).await? {
        let (asked, mut missing) = (request.wants.len(), 0);
        for want in request.wants.into_iter().take(WANTS_MAX) {
            let held = match server.can_fetch(peer, &request.scope, &want.id) {
                true => look_up_aside(&server.store, want.id).await,
                false => None,
            };
            missing += u32::from(held.is_none());
            let (answer, body) = want.build_answer(held);
            wire::push_frame(&mut gathered, &postcard::to_allocvec(&answer)?)?;
            if body.len() <= GATHERED_EACH_BYTES {
                gathered.extend_from_slice(&body);
                if gathered.len() >= GATHERED_BYTES {
                    write(&mut stream, &mut gathered, server).await?;
                }
                continue;
            }
            write(&mut stream, &mut gathered, server).await?;
            for frame in body.chunks(server.upload.piece_bytes(FRAME_BYTES)) {
                server.upload.pass_bytes(frame.len()).await;
                with_timeout(async { Ok(stream.write_all(frame).await?) }).await?;
            }
        }
        write(&mut stream, &mut gathered, server).await?;
        with_timeout(async { Ok(stream.flush().await?) }).await?;
        server
            .rate_limit
            .wait_for_tokens(peer, request_cost(asked, missing))
            .await;
    }
    Ok(())
}

/// Receives the next request; none if the receiver closes the stream, or is silent for
/// [`SILENCE_MAX`].
async fn next(stream: &mut BufReader<Stream>) -> Result<Option<ContentRequest>, WireError> {
    match wire::receive_within(stream, SILENCE_MAX, REQUEST_BYTES_MAX).await {
        Err(WireError::Stream(error)) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        other => other,
    }
}

async fn write(
    stream: &mut BufReader<Stream>,
    gathered: &mut Vec<u8>,
    server: &ContentServer,
) -> Result<(), WireError> {
    if !gathered.is_empty() {
        server.upload.pass_bytes(gathered.len()).await;
        with_timeout(async { Ok(stream.write_all(gathered).await?) }).await?;
        gathered.clear();
    }
    Ok(())
}

/// Serves a direct channel until the receiver closes it. It blocks its thread.
pub(super) fn on_channel(
    peer: PeerId,
    channel: &mut Channel,
    server: &ContentServer,
) -> Result<(), WireError> {
    while let Some(request) = channel.receive_message::<ContentRequest>()? {
        let (asked, mut missing) = (request.wants.len(), 0);
        for want in request.wants.into_iter().take(WANTS_MAX) {
            let is_served = server.can_fetch(peer, &request.scope, &want.id);
            let held = is_served.then(|| look_up(&server.store, &want.id));
            let held = held.flatten();
            missing += u32::from(held.is_none());
            let (answer, body) = want.build_answer(held);
            channel.send_message(&answer)?;
            for frame in body.chunks(server.upload.piece_bytes(FRAME_BYTES)) {
                server.upload.pass_blocking(frame.len());
                channel.send_bytes(frame)?;
            }
        }
        server
            .rate_limit
            .pass_blocking(peer, request_cost(asked, missing));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    /// How many contents a peer gets in ten seconds, beyond those at once, if it asks for so many
    /// in each question.
    fn contents_in_ten_seconds(wants: usize, missing: u32) -> usize {
        let rate_limit = RateLimit::new(ASKED_AT_ONCE, ASKED_PER_SECOND);
        let (peer, mut now) = (PeerId::random(), Instant::now());
        while rate_limit.take_tokens(peer, ASKED_AT_ONCE, now).is_ok() {}
        let (end, mut contents) = (now + Duration::from_secs(10), 0);
        loop {
            match rate_limit.take_tokens(peer, request_cost(wants, missing), now) {
                Ok(()) => contents += wants,
                Err(wait) => now += wait.max(Duration::from_micros(1)),
            }
            if now >= end {
                return contents;
            }
        }
    }

    #[test]
    fn who_asks_in_a_loop_is_slowed_and_honest_fetching_is_not() {
        assert!(contents_in_ten_seconds(WANTS_MAX, 0) > 2_000_000);
        let one_by_one = contents_in_ten_seconds(1, 0);
        assert!((70_000..90_000).contains(&one_by_one), "{one_by_one}");
        let misses = contents_in_ten_seconds(WANTS_MAX, WANTS_MAX as u32);
        assert!(misses < 90_000, "{misses}");
        // One question can cost no more than a peer can ask at once.
        assert!(request_cost(usize::MAX, WANTS_MAX as u32) < ASKED_AT_ONCE);
    }
}
