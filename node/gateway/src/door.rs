//! The door: where the gateway listens, how many connections it holds, and which of them it closes
//! when one more comes.
//!
//! A connection without a question costs its client nothing. If all places are taken, the door
//! closes the connection that has waited longest: first those that never asked anything, then those
//! that are kept alive between questions. So a client that opens connections and sends nothing
//! keeps nobody out. A connection whose question is being answered is never closed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
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
        let waiting = Arc::new(WaitingConnections::default());
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "no connection is accepted for a moment");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            let place = match places.clone().try_acquire_owned() {
                Ok(place) => Ok(place),
                // The connection that is closed gives its place back at once.
                Err(_) if waiting.close_oldest() => places.clone().acquire_owned().await,
                Err(_) => {
                    // A client that does not read this at once gets no answer.
                    drop(stream.try_write(FULL));
                    continue;
                }
            };
            let place = place.expect("nobody closes the semaphore");
            let connection = Connection::wait(waiting.clone());
            let (router, patience) = (router.clone(), self.head_patience);
            let conversation = converse(stream, router, patience, connection);
            tokio::spawn(async move {
                conversation.await;
                drop(place);
            });
        }
    }
}

async fn converse(
    stream: TcpStream,
    router: Router,
    head_patience: Duration,
    connection: Arc<Connection>,
) {
    let asked = connection.clone();
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut router, asked) = (router.clone(), asked.clone());
        async move {
            let question = Question::begin(asked);
            let answered: Result<_, Infallible> = router.call(request).await;
            answered.map(|answer| answer.map(|body| AnswerBody { body, question }))
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
    tokio::select! {
        served = rules.serve_connection(TokioIo::new(stream), answer) => {
            if let Err(error) = served {
                tracing::debug!(%error, "a conversation ended early");
            }
        }
        () = connection.closing.notified() => {
            tracing::debug!("a connection without a question made room for another");
        }
    }
}

/// The connections that wait for a question, those to close first at the beginning.
#[derive(Debug, Default)]
struct WaitingConnections {
    state: Mutex<WaitingState>,
}

#[derive(Debug, Default)]
struct WaitingState {
    /// Numbers each wait, so that the lowest began first.
    waits: u64,
    queue: BTreeMap<WaitKey, Arc<Notify>>,
}

/// Connections that never asked anything come first, then those that began to wait first.
type WaitKey = (AskedBefore, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AskedBefore {
    No,
    Yes,
}

impl WaitingConnections {
    fn lock(&self) -> MutexGuard<'_, WaitingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, asked: AskedBefore, closing: &Arc<Notify>) -> WaitKey {
        let mut state = self.lock();
        state.waits += 1;
        let key = (asked, state.waits);
        state.queue.insert(key, closing.clone());
        key
    }

    /// Closes the connection that has waited longest, and says whether there was one.
    fn close_oldest(&self) -> bool {
        let oldest = self.lock().queue.pop_first();
        if let Some((_, closing)) = &oldest {
            closing.notify_one();
        }
        oldest.is_some()
    }
}

/// An open connection, in the queue while it waits for a question.
#[derive(Debug)]
struct Connection {
    waiting: Arc<WaitingConnections>,
    closing: Arc<Notify>,
    key: Mutex<WaitKey>,
}

impl Connection {
    fn wait(waiting: Arc<WaitingConnections>) -> Arc<Connection> {
        let closing = Arc::new(Notify::new());
        let key = Mutex::new(waiting.add(AskedBefore::No, &closing));
        Arc::new(Connection {
            waiting,
            closing,
            key,
        })
    }

    fn key(&self) -> MutexGuard<'_, WaitKey> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave_queue(&self) {
        let key = *self.key();
        self.waiting.lock().queue.remove(&key);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.leave_queue();
    }
}

/// A question from its head until the last byte of its answer is handed over.
#[derive(Debug)]
struct Question(Arc<Connection>);

impl Question {
    fn begin(connection: Arc<Connection>) -> Question {
        connection.leave_queue();
        Question(connection)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let connection = &self.0;
        let key = connection
            .waiting
            .add(AskedBefore::Yes, &connection.closing);
        *connection.key() = key;
    }
}

/// The body of an answer, which ends its question when it is dropped.
#[derive(Debug)]
struct AnswerBody {
    body: Body,
    #[expect(dead_code, reason = "it counts as long as the body lives")]
    question: Question,
}

impl HttpBody for AnswerBody {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
