//! A tensor that one provider could not hand to another: the buyer fetches it and hands it on.
//!
//! Where two providers cannot reach each other, both have reached the buyer. Who does not take it
//! from here either is known at once, by name, and not when time runs out.

use libp2p::PeerId;
use souk_market::AccountKey;

use crate::buyer::dispatch::broken;
use crate::buyer::reasons::SessionError;
use crate::buyer::{Buyer, JobError, settle};
use crate::folder::key;
use crate::network::OpenError;
use crate::network::wire;
use crate::protocols::lease::{PROTOCOL, Taken, Untaken};

/// How long the other provider may take to answer.
const ANSWERED_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// Hands a tensor of `maker` to whom it was made for.
///
/// # Errors
/// Who of the two is to be done without.
pub(crate) async fn relay(
    buyer: &Buyer,
    maker: (AccountKey, PeerId),
    untaken: Untaken,
) -> Result<(), JobError> {
    let Untaken {
        consumer,
        request,
        offer,
        why,
    } = untaken;
    settle::fetch_one(buyer, maker, &offer.name, offer.tensor).await?;
    let (name, maker) = (offer.name.clone(), maker.0);
    let failed = |cause| broken(consumer, cause);
    let offering = async {
        let peer = key::peer_of(&consumer.0);
        let peer = peer.map_err(|error| failed(OpenError::from(error).into()))?;
        let opened = buyer.network.open(peer, PROTOCOL).await;
        let mut stream = opened.map_err(|error| failed(error.into()))?;
        let sent = wire::send(&mut stream, &offer.opening(request)).await;
        sent.map_err(|error| failed(error.into()))?;
        let taken = wire::receive(&mut stream).await;
        taken.map_err(|error| failed(error.into()))
    };
    match tokio::time::timeout(ANSWERED_WITHIN, offering).await {
        Ok(Ok(Taken::Yes)) => {
            tracing::info!(name, %maker, %consumer, why, "handed on by the buyer");
            Ok(())
        }
        Ok(Ok(Taken::No)) | Err(_) => Err(failed(SessionError::Untaken { name, maker, why })),
        Ok(Err(error)) => Err(error),
    }
}
