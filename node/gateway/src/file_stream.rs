//! Streams a part of a file, so that an answer holds no more of it in memory than one read.

use std::io::{self, SeekFrom};
use std::ops::Range;

use axum::body::Bytes;
use futures::{Stream, stream};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Bytes of one read from a file.
const CHUNK_BYTES: u64 = 256 << 10;

/// Streams a range of a file's bytes.
///
/// # Errors
/// Fails if the file cannot be read.
pub async fn stream_range(
    mut file: File,
    range: Range<u64>,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + use<>> {
    file.seek(SeekFrom::Start(range.start)).await?;
    let left = range.end - range.start;
    Ok(stream::try_unfold(
        (file, left),
        |(mut file, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let wanted = left.min(CHUNK_BYTES);
            let mut chunk = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
            let read = (&mut file).take(wanted).read_to_end(&mut chunk).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Some((Bytes::from(chunk), (file, left - read as u64))))
        },
    ))
}
