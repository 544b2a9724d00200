//! Reads the pieces of a tab's answers from its provider while the engine writes them, so that the
//! reader sees the text early. Nothing else depends on this: the whole answer follows on the
//! lease's own stream.

use futures::AsyncReadExt;
use souk_market::{AccountKey, LeaseId};
use tokio::sync::mpsc;

use crate::endpoint::pieces::{FollowerMessage, PROTOCOL, Piece};
use souk_folder::key;
use souk_network::Network;
use souk_network::wire::{self, WireError};

/// The longest piece in bytes.
const PIECE_BYTES_MAX: usize = 512 << 10;

/// The requests to stop that can wait to be sent.
const STOPS_MAX: usize = 4;

/// The pieces that can wait for the tab's task, which slows the provider if it is slow.
const PIECES_MAX: usize = 64;

/// Follows a lease until its stream ends. Returns the pieces, and a sender of the requests whose
/// answers the provider should end.
pub(super) fn follow_lease(
    network: &Network,
    provider: AccountKey,
    lease: LeaseId,
) -> (mpsc::Receiver<Piece>, mpsc::Sender<u32>) {
    let (pieces, received) = mpsc::channel(PIECES_MAX);
    let (stop, stops) = mpsc::channel(STOPS_MAX);
    let network = network.clone();
    tokio::spawn(async move {
        if let Err(why) = follow(&network, provider, lease, pieces, stops).await {
            tracing::debug!(%lease, why, "the pieces of a tab are not followed");
        }
    });
    (received, stop)
}

async fn follow(
    network: &Network,
    provider: AccountKey,
    lease: LeaseId,
    pieces: mpsc::Sender<Piece>,
    mut stops: mpsc::Receiver<u32>,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let peer = key::peer_of(&provider.0).map_err(|error| text(&error))?;
    let opened = network.open_stream(peer, PROTOCOL).await;
    let mut stream = opened.map_err(|error| text(&error))?;
    let sent = wire::send(&mut stream, &FollowerMessage::Follow(lease)).await;
    sent.map_err(|error| text(&error))?;
    let (mut reader, mut writer) = stream.split();
    let hearing = async {
        loop {
            let piece = wire::receive_short(&mut reader, PIECE_BYTES_MAX).await?;
            if pieces.send(piece).await.is_err() {
                return Ok(());
            }
        }
    };
    let saying = async {
        while let Some(request) = stops.recv().await {
            wire::send(&mut writer, &FollowerMessage::Stop(request)).await?;
        }
        Ok(())
    };
    let ended: Result<(), WireError> = tokio::select! {
        heard = hearing => heard,
        said = saying => said,
    };
    ended.map_err(|error| text(&error))
}
