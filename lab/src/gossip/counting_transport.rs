//! Wraps a connection to count its bytes in both directions, so that the measurement of gossip
//! knows what each node sends and receives.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};

/// The bytes of all connections of a node, which can share one counter.
#[derive(Debug, Default)]
pub(super) struct ByteCounter {
    received: AtomicU64,
    sent: AtomicU64,
}

impl ByteCounter {
    /// Returns the bytes received and sent so far.
    pub(super) fn read(&self) -> (u64, u64) {
        let received = self.received.load(Ordering::Relaxed);
        (received, self.sent.load(Ordering::Relaxed))
    }
}

/// One connection of a node.
pub(super) struct CountingTransport<T> {
    inner: T,
    counter: Arc<ByteCounter>,
}

impl<T> CountingTransport<T> {
    pub(super) fn new(inner: T, counter: Arc<ByteCounter>) -> CountingTransport<T> {
        CountingTransport { inner, counter }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountingTransport<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        self.counter
            .received
            .fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(read))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountingTransport<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.inner).poll_write(context, buffer))?;
        self.counter.sent.fetch_add(sent as u64, Ordering::Relaxed);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}
