//! Accepts the gateway's connections: it limits their number and decides which of them to close if
//! one more arrives.
//!
//! A connection without a request costs its client nothing. If no place is free, the listener
//! closes the connection that has waited longest: first those that never sent a request, then those
//! that wait between requests. So a client that opens connections and sends nothing cannot keep
//! others out. The listener closes a connection whose request is being answered only if its client
//! does not read, because such an answer would hold its place, and all that it costs, for good.

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
use tokio_io_timeout::TimeoutStream;
use tower_service::Service;

/// Largest number of connections, unless the server sets another.
pub const CONNECTIONS_MAX: usize = 64;

/// Longest time for the head of a request to arrive, and for a connection to stay open without one.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(5);

/// Longest time for which a client can take nothing of its answer while there is some.
const READER_PATIENCE: Duration = Duration::from_secs(60);

/// Largest size of a request's head, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// Largest number of headers of a request.
const HEADERS_MAX: usize = 64;

/// Pause after the system fails to accept a connection, for example because it has no more files.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Answer to a connection beyond the largest number.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\
                      Connection: close\r\n\r\n";

/// A failure to listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// The address is not a loopback address, so others could read along.
    #[error("HTTP is served on loopback addresses only, and {address} is not one")]
    NotLoopback {
        /// The requested address.
        address: SocketAddr,
    },
    /// The system refused to listen.
    #[error("cannot serve HTTP on {address}: {cause}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// Error of the system.
        cause: io::Error,
    },
}

/// A listening socket.
#[derive(Debug)]
pub struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
    connections_max: usize,
    /// Longest time for a head to arrive.
    pub(crate) head_patience: Duration,
    /// Longest time for which a client can take nothing of its answer.
    reader_patience: Duration,
}

impl HttpListener {
    /// Listens on a loopback address. If you pass port 0, the system selects a free port, which
    /// [`HttpListener::address`] returns.
    ///
    /// # Errors
    /// [`ListenerError`]: the address is not a loopback address, or cannot be bound.
    pub async fn bind_loopback(address: SocketAddr) -> Result<HttpListener, ListenerError> {
        if !address.ip().is_loopback() {
            return Err(ListenerError::NotLoopback { address });
        }
        let failed = |cause| ListenerError::Listen { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(HttpListener {
            listener,
            address,
            connections_max: CONNECTIONS_MAX,
            head_patience: HEAD_PATIENCE,
            reader_patience: READER_PATIENCE,
        })
    }

    /// Sets the largest number of connections.
    #[must_use]
    pub fn with_connections(mut self, most: usize) -> HttpListener {
        self.connections_max = most;
        self
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests for as long as you await it.
    pub async fn serve(self, router: Router) {
        let places = Arc::new(Semaphore::new(self.connections_max));
        let waiting = Arc::new(WaitingConnections::default());
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection failed; pausing");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            let place = match places.clone().try_acquire_owned() {
                Ok(place) => Ok(place),
                // The closed connection releases its place at once.
                Err(_) if waiting.close_oldest() => places.clone().acquire_owned().await,
                Err(_) => {
                    // A client that does not read this at once gets no answer.
                    drop(stream.try_write(FULL));
                    continue;
                }
            };
            let place = place.expect("nobody closes the semaphore");
            let connection = Connection::new_waiting(waiting.clone());
            // Sends small answers without delay.
            let _ = stream.set_nodelay(true);
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(self.reader_patience));
            let (router, patience) = (router.clone(), self.head_patience);
            let conversation = serve_connection(stream, router, patience, connection);
            tokio::spawn(async move {
                conversation.await;
                drop(place);
            });
        }
    }
}

async fn serve_connection(
    stream: TimeoutStream<TcpStream>,
    router: Router,
    head_patience: Duration,
    connection: Arc<Connection>,
) {
    let asked = connection.clone();
    let answer = service_fn(move |request: Request<Incoming>| {
        let (mut router, asked) = (router.clone(), asked.clone());
        async move {
            let question = Question::begin_request(asked);
            let answered: Result<_, Infallible> = router.call(request).await;
            answered.map(|answer| answer.map(|body| AnswerBody { body, question }))
        }
    });
    let mut rules = http1::Builder::new();
    rules
        .timer(TokioTimer::new())
        .header_read_timeout(head_patience)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    tokio::select! {
        served = rules.serve_connection(TokioIo::new(Box::pin(stream)), answer) => {
            if let Err(error) = served {
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        }
        () = connection.closing.notified() => {
            tracing::debug!("closed a connection without a request to make room for another");
        }
    }
}

/// The connections that wait for a request, in the order in which to close them.
#[derive(Debug, Default)]
struct WaitingConnections {
    state: Mutex<WaitingState>,
}

#[derive(Debug, Default)]
struct WaitingState {
    /// Number of the next wait: the lowest number began first.
    waits: u64,
    queue: BTreeMap<WaitKey, Arc<Notify>>,
}

/// Orders connections that never sent a request first, then by the start of their wait.
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

    /// Closes the connection that has waited longest; returns whether one was waiting.
    fn close_oldest(&self) -> bool {
        let oldest = self.lock().queue.pop_first();
        if let Some((_, closing)) = &oldest {
            closing.notify_one();
        }
        oldest.is_some()
    }
}

/// An open connection, in the queue while it waits for a request.
#[derive(Debug)]
struct Connection {
    waiting: Arc<WaitingConnections>,
    closing: Arc<Notify>,
    key: Mutex<WaitKey>,
}

impl Connection {
    fn new_waiting(waiting: Arc<WaitingConnections>) -> Arc<Connection> {
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

/// A request from its head until the connection takes the last byte of its answer.
#[derive(Debug)]
struct Question(Arc<Connection>);

impl Question {
    fn begin_request(connection: Arc<Connection>) -> Question {
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

/// The body of an answer; dropping it ends the request.
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

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::*;

    /// Tells when an answer is dropped.
    struct Dropped(mpsc::UnboundedSender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_loses_its_answer_and_its_place() {
        let local = "127.0.0.1:0".parse().unwrap();
        let listener = HttpListener::bind_loopback(local).await.unwrap();
        let mut listener = listener.with_connections(1);
        listener.reader_patience = Duration::from_millis(100);
        let address = listener.address();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let endless = move || async move {
            let piece = Bytes::from_static(&[b'x'; 1 << 16]);
            let pieces = futures::stream::repeat_with({
                let dropped = Dropped(ended);
                move || {
                    let _ = &dropped;
                    Ok::<_, Infallible>(piece.clone())
                }
            });
            Body::from_stream(pieces)
        };
        let short = get(|| async { "short" });
        let router = Router::new()
            .route("/endless", get(endless))
            .route("/short", short);
        tokio::spawn(listener.serve(router));
        let ask = |path: &'static str| async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream
        };
        let mut reader = ask("/endless").await;
        // A client that reads gets more than the buffers between hold.
        let mut taken = vec![0; 1 << 24];
        reader.read_exact(&mut taken).await.unwrap();
        assert!(ends.try_recv().is_err(), "the answer goes on");
        ends.recv().await.unwrap();
        let mut answer = String::new();
        let mut next = ask("/short").await;
        next.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("short"), "{answer}");
    }
}
