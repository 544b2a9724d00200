//! The sender's side of `/souk/tensor/1`.
//!
//! A sender reads its next frame when the one before is on its way, so a receiver that is slow, or
//! has gone, is given nothing more than a frame.

use std::io;
use std::sync::Arc;

use futures::AsyncWriteExt;
use futures::io::BufReader;
use libp2p::swarm::Stream;
use souk_memory::{FRAME_BYTES, Store};

use super::protocol::{REQUEST_BYTES_MAX, Request, WANTS_MAX, look_up, look_up_aside};
use super::{SILENCE_MAX, patient};
use crate::lane::Channel;
use crate::pace::Pace;
use crate::wire::{self, WireError};

/// Answers are gathered up to this before they are written: small contents are many.
const GATHERED_BYTES: usize = 256 << 10;

/// Content this long is not copied to be gathered.
const GATHERED_EACH_BYTES: usize = 64 << 10;

/// What a node serves, and how fast.
pub(super) struct Shelf {
    pub(super) store: Arc<Store>,
    pub(super) upload: Pace,
}

/// Serves a stream until the receiver closes it.
pub(super) async fn on_stream(stream: Stream, shelf: &Shelf) -> Result<(), WireError> {
    let mut stream = BufReader::new(stream);
    let mut gathered = Vec::new();
    while let Some(request) = next(&mut stream).await? {
        for want in request.wants.into_iter().take(WANTS_MAX) {
            let held = look_up_aside(&shelf.store, want.id).await;
            let (answer, body) = want.answered(held);
            wire::push_frame(&mut gathered, &postcard::to_allocvec(&answer)?)?;
            if body.len() <= GATHERED_EACH_BYTES {
                gathered.extend_from_slice(&body);
                if gathered.len() >= GATHERED_BYTES {
                    write(&mut stream, &mut gathered, shelf).await?;
                }
                continue;
            }
            write(&mut stream, &mut gathered, shelf).await?;
            for frame in body.chunks(shelf.upload.piece(FRAME_BYTES)) {
                shelf.upload.pass(frame.len()).await;
                patient(async { Ok(stream.write_all(frame).await?) }).await?;
            }
        }
        write(&mut stream, &mut gathered, shelf).await?;
        patient(async { Ok(stream.flush().await?) }).await?;
    }
    Ok(())
}

/// The next request; none where the receiver has closed the stream, or has no more for now.
async fn next(stream: &mut BufReader<Stream>) -> Result<Option<Request>, WireError> {
    match wire::receive_within(stream, SILENCE_MAX, REQUEST_BYTES_MAX).await {
        Err(WireError::Stream(error)) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        other => other,
    }
}

async fn write(
    stream: &mut BufReader<Stream>,
    gathered: &mut Vec<u8>,
    shelf: &Shelf,
) -> Result<(), WireError> {
    if !gathered.is_empty() {
        shelf.upload.pass(gathered.len()).await;
        patient(async { Ok(stream.write_all(gathered).await?) }).await?;
        gathered.clear();
    }
    Ok(())
}

/// Serves a lane until the receiver closes it; on a thread of its own.
pub(super) fn on_lane(channel: &mut Channel, shelf: &Shelf) -> Result<(), WireError> {
    while let Some(request) = channel.receive_message::<Request>()? {
        for want in request.wants.into_iter().take(WANTS_MAX) {
            let (answer, body) = want.answered(look_up(&shelf.store, &want.id));
            channel.send_message(&answer)?;
            for frame in body.chunks(shelf.upload.piece(FRAME_BYTES)) {
                shelf.upload.pass_blocking(frame.len());
                channel.send(frame)?;
            }
        }
    }
    Ok(())
}
