//! The door for who watches: HTTP/1.1, one question a connection.
//!
//! It answers one path and reads no body, so the few lines of the protocol that this takes stand
//! here. Whoever comes is given a few seconds and no memory beyond a short head and a page; a
//! client that is slow, or that comes beside too many others, is closed. The name by which the
//! node is asked must be one of this machine: a page in somebody's browser cannot have another
//! name point here and read along.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Page;

/// The longest head of a question; Prometheus sends some 300 bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Who is answered at a time: a few that watch, and someone who looks.
const CLIENTS_MAX: usize = 8;

/// How long a question and its answer may take.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);

/// How long nobody is let in after the system would not: it has no more files, say.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What the text format calls itself.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Why no metrics are served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Others could read it.
    #[error("metrics are served on loopback addresses only, and {address} is none")]
    NotLoopback {
        /// The address wanted.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("cannot serve metrics on {address}: {cause}")]
    Listen {
        /// The address wanted.
        address: SocketAddr,
        /// What it said.
        cause: io::Error,
    },
}

/// An address that is listened on.
#[derive(Debug)]
pub struct MetricsListener {
    listener: TcpListener,
    address: SocketAddr,
    /// What an exchange may take.
    patience: Duration,
}

/// What an answer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    /// The page.
    Page,
    /// The same without its text.
    Head,
    /// Something else, with its code and why.
    Refused(&'static str, &'static str),
}

impl MetricsListener {
    /// Listens on a loopback address; port 0 takes a free one.
    ///
    /// # Errors
    /// [`MetricsError`]: the address is another machine's business, or in use.
    pub async fn at(address: SocketAddr) -> Result<MetricsListener, MetricsError> {
        if !address.ip().is_loopback() {
            return Err(MetricsError::NotLoopback { address });
        }
        let failed = |cause| MetricsError::Listen { address, cause };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(MetricsListener {
            listener,
            address,
            patience: EXCHANGE_MAX,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with a page made anew each time, for as long as there is one.
    pub async fn serve<Made>(self, page: impl Fn() -> Made + Send + Sync + 'static)
    where
        Made: Future<Output = Option<Page>> + Send + 'static,
    {
        let (page, places) = (Arc::new(page), Arc::new(Semaphore::new(CLIENTS_MAX)));
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "nobody is let in to the metrics for a moment");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                continue;
            };
            let (page, patience) = (page.clone(), self.patience);
            tokio::spawn(async move {
                let exchange = exchange(stream, &*page);
                match tokio::time::timeout(patience, exchange).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "metrics were not taken"),
                    Err(_) => tracing::debug!("who asked for metrics was too slow"),
                }
                drop(place);
            });
        }
    }
}

/// Hears a question and answers it.
async fn exchange<Made: Future<Output = Option<Page>>>(
    mut stream: TcpStream,
    page: &impl Fn() -> Made,
) -> io::Result<()> {
    let head = head(&mut stream).await?;
    let answer = head.map_or(
        Response::Refused(
            "431 Request Header Fields Too Large",
            "the question is too long",
        ),
        |head| asked(&head),
    );
    let (code, kind, text) = match answer {
        Response::Refused(code, why) => (code, "text/plain; charset=utf-8", format!("{why}\n")),
        Response::Page | Response::Head => match page().await {
            Some(page) => ("200 OK", TEXT, page.into_text()),
            None => (
                "503 Service Unavailable",
                "text/plain; charset=utf-8",
                "stopping\n".to_owned(),
            ),
        },
    };
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    if answer != Response::Head {
        stream.write_all(text.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// The head of a question; none if it is longer than any honest one.
async fn head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(1024);
    loop {
        if let Some(end) = end_of_head(&head) {
            head.truncate(end);
            return Ok(Some(head));
        }
        if head.len() >= HEAD_BYTES_MAX {
            return Ok(None);
        }
        let mut room = (&mut *stream).take((HEAD_BYTES_MAX - head.len()) as u64);
        if room.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let blank = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    blank.or_else(|| bytes.windows(2).position(|window| window == b"\n\n"))
}

/// What a question is answered with.
fn asked(head: &[u8]) -> Response {
    let refused = Response::Refused;
    let unread = refused("400 Bad Request", "this is no HTTP");
    let Ok(head) = std::str::from_utf8(head) else {
        return unread;
    };
    let mut lines = head.lines();
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else {
        return unread;
    };
    if !version.starts_with("HTTP/1.") {
        return unread;
    }
    let name = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host")
            .then(|| value.trim().to_owned())
    };
    if lines.find_map(name).is_some_and(|host| !is_own(&host)) {
        return refused(
            "421 Misdirected Request",
            "ask by a name of this machine: localhost",
        );
    }
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET", "/metrics") => Response::Page,
        ("HEAD", "/metrics") => Response::Head,
        (_, "/metrics") => refused("405 Method Not Allowed", "ask with GET"),
        _ => refused("404 Not Found", "there is /metrics, and nothing else"),
    }
}

/// Whether a host, with a port or without, is this machine by its own word.
fn is_own(host: &str) -> bool {
    let bare = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| match port.parse::<u16>() {
            Ok(_) => name,
            Err(_) => host,
        });
    let address = bare.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.is_loopback();
    bare.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A door with a page that counts how often it was made.
    async fn door() -> (SocketAddr, Arc<AtomicUsize>) {
        let local = "127.0.0.1:0".parse().unwrap();
        let listening = MetricsListener::at(local).await.unwrap();
        let (address, made) = (listening.address(), Arc::new(AtomicUsize::new(0)));
        let count = made.clone();
        let page = move || {
            let nth = count.fetch_add(1, Ordering::SeqCst) + 1;
            let mut page = Page::default();
            page.gauge("souk_made", "How often.", nth);
            async move { Some(page) }
        };
        tokio::spawn(listening.serve(page));
        (address, made)
    }

    async fn ask(address: SocketAddr, question: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(question).await.unwrap();
        let mut answer = String::new();
        // Who is closed in the middle of a question may lose the answer to it.
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn the_page_is_answered_and_everything_else_refused() {
        let (address, made) = door().await;
        let get = b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nAccept: */*\r\n\r\n";
        let answer = ask(address, get).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("version=0.0.4"), "{answer}");
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            answer.contains(&format!("Content-Length: {}\r\n", text.len())),
            "{answer}"
        );
        assert!(text.ends_with("souk_made 1\n"), "{text}");
        let head = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n").await;
        assert!(
            head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        let before = made.load(Ordering::SeqCst);
        for (question, code) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (
                b"GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n",
                "421",
            ),
            (b"\x16\x03\x01\x02 garbage \xff\n\n", "400"),
            (b"GET /metrics\n\n", "400"),
        ] {
            let answer = ask(address, question).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
        }
        assert_eq!(
            made.load(Ordering::SeqCst),
            before,
            "no page is made for them"
        );
    }

    #[tokio::test]
    async fn an_endless_question_is_not_heard_out() {
        let (address, made) = door().await;
        let endless = [
            b"GET /metrics HTTP/1.1\r\nX: ".to_vec(),
            vec![b'a'; HEAD_BYTES_MAX],
        ]
        .concat();
        let answer = ask(address, &endless).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
        assert_eq!(made.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn who_comes_beside_too_many_is_closed_until_one_of_them_goes() {
        let (address, _) = door().await;
        let mut others = Vec::new();
        for _ in 0..CLIENTS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /metrics HT").await.unwrap();
            others.push(stream);
        }
        let question = b"GET /metrics HTTP/1.1\r\n\r\n";
        assert_eq!(ask(address, question).await, "");
        drop(others);
        let answered = async {
            while !ask(address, question).await.starts_with("HTTP/1.1 200") {
                tokio::task::yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(EXCHANGE_MAX * 2, answered).await;
        assert!(in_time.is_ok(), "there is room again");
    }

    #[tokio::test]
    async fn who_is_slow_is_closed() {
        let mut listening = MetricsListener::at("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        listening.patience = Duration::from_millis(1);
        let address = listening.address();
        tokio::spawn(listening.serve(|| async { Some(Page::default()) }));
        assert_eq!(ask(address, b"GET /metrics HT").await, "");
    }

    #[tokio::test]
    async fn an_address_that_others_reach_and_one_in_use_are_refused_by_name() {
        let open = MetricsListener::at("0.0.0.0:0".parse().unwrap())
            .await
            .unwrap_err();
        assert!(open.to_string().contains("0.0.0.0:0"), "{open}");
        let (address, _) = door().await;
        let taken = MetricsListener::at(address).await.unwrap_err();
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for own in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:9464",
            "127.9.9.9",
            "[::1]:9464",
        ] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example:80",
            "10.0.0.1:9464",
            "",
            "[::2]:1",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }
}
