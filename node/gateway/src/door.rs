//! The door: where the gateway listens, and how many may stand in it for how long.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 64;

/// How long the head of a question may take to come, and a connection may be kept without one.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(5);

/// The longest head of a question.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most headers of a question.
const HEADERS_MAX: usize = 64;

/// How long nobody is let in after the system would not: it has no more files, say.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What one beyond all places hears.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\
                      Connection: close\r\n\r\n";

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Others could read along.
    #[error("HTTP is served on loopback addresses only, and {address} is none")]
    NotLoopback {
        /// The address wanted.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("cannot serve HTTP on {address}: {cause}")]
    Listen {
        /// The address wanted.
        address: SocketAddr,
        /// What it said.
        cause: io::Error,
    },
}

/// An address that is listened on.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    address: SocketAddr,
    /// How long a head may take.
    pub(crate) head_patience: Duration,
}

impl Door {
    /// Listens on a loopback address; port 0 takes a free one.
    ///
    /// # Errors
    /// [`DoorError`]: the address is another machine's business, or in use.
    pub async fn at(address: SocketAddr) -> Result<Door, DoorError> {
        if !address.ip().is_loopback() {
            return Err(DoorError::NotLoopback { address });
        }
        let failed = |cause| DoorError::Listen { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Door {
            listener,
            address,
            head_patience: HEAD_PATIENCE,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers for as long as it is awaited.
    pub async fn serve(self, router: Router) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "nobody is let in for a moment");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            match places.clone().try_acquire_owned() {
                Ok(place) => drop(tokio::spawn(converse(
                    stream,
                    router.clone(),
                    self.head_patience,
                    place,
                ))),
                // One who does not take it at once goes without a word.
                Err(_) => drop(stream.try_write(FULL)),
            }
        }
    }
}

async fn converse(
    stream: TcpStream,
    router: Router,
    head_patience: Duration,
    _place: OwnedSemaphorePermit,
) {
    let answer = service_fn(move |asked: Request<Incoming>| {
        let mut router = router.clone();
        async move {
            let answered: Result<_, Infallible> = router.call(asked).await;
            answered
        }
    });
    // Small answers go at once.
    let _ = stream.set_nodelay(true);
    let mut rules = http1::Builder::new();
    rules
        .timer(TokioTimer::new())
        .header_read_timeout(head_patience)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = rules.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a conversation ended early");
    }
}
