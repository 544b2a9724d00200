//! Serves the metrics of a running validator or provider, on an address of their own: `/metrics` in
//! the text format of Prometheus, and `/healthz`.

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use souk_network::metrics::{Page, PageMaker, TEXT_FORMAT};

use crate::access::check_host_and_origin;
use crate::headers::finish_response;
use crate::listener::HttpListener;
use crate::problem::{Code, Problem};

/// Answers requests for metrics for as long as you await it.
pub async fn serve_metrics(listener: HttpListener, figures: PageMaker) {
    listener.serve(router(figures)).await;
}

fn router(figures: PageMaker) -> Router {
    let page = move || {
        let made = figures();
        async move { metrics_response(made.await) }
    };
    let healthy = || std::future::ready(Json(serde_json::json!({ "ok": true })));
    Router::new()
        .route("/metrics", get(page))
        .route("/healthz", get(healthy))
        .fallback(|| {
            let hint = "a node answers /metrics and /healthz; `souk serve` answers more";
            std::future::ready(Problem::not_found("there is no such path", hint))
        })
        .layer(middleware::from_fn(guard_request))
        .layer(middleware::map_response(finish_response))
}

/// Returns a page of metrics in the format of Prometheus.
pub fn metrics_response(page: Option<Page>) -> Response {
    match page {
        Some(page) => ([(CONTENT_TYPE, TEXT_FORMAT)], page.into_text()).into_response(),
        None => Problem::new(Code::Stopping, "the node stops", "ask again later").into_response(),
    }
}

async fn guard_request(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match check_host_and_origin(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use axum::body::Body;
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::listener::{CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_PATIENCE};

    /// Serves a page that counts how often it was made.
    async fn serve_page(head_patience: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
        let local = "127.0.0.1:0".parse().unwrap();
        let mut listener = HttpListener::bind_loopback(local).await.unwrap();
        listener.head_patience = head_patience;
        let (address, made) = (listener.address(), Arc::new(AtomicUsize::new(0)));
        let count = made.clone();
        let page: PageMaker = Arc::new(move || {
            let nth = count.fetch_add(1, Ordering::SeqCst) + 1;
            let mut page = Page::default();
            page.add_gauge("souk_made", "How often.", nth);
            Box::pin(async move { Some(page) })
        });
        tokio::spawn(serve_metrics(listener, page));
        (address, made)
    }

    async fn ask(address: SocketAddr, question: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Who is closed in the middle of a question may lose the answer to it.
        let _ = stream.write_all(question).await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn the_page_is_answered_and_everything_else_refused() {
        let (address, made) = serve_page(HEAD_PATIENCE).await;
        let question = |first: &str, host: &str| {
            format!("{first} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
        };
        let own = "localhost:9464";
        let answer = ask(address, &question("GET /metrics", own)).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("version=0.0.4"), "{answer}");
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}\r\n", text.len());
        assert!(answer.contains(&length), "{answer}");
        assert!(text.ends_with("souk_made 1\n"), "{text}");
        let head = ask(address, &question("HEAD /metrics", own)).await;
        assert!(
            head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        let before = made.load(Ordering::SeqCst);
        for (question, code) in [
            (question("GET /", own), "404"),
            (question("POST /metrics", own), "405"),
            (question("GET /metrics", "evil.example:9464"), "421"),
            (question("DELETE /metrics", "evil.example:9464"), "421"),
            (
                b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n".to_vec(),
                "421",
            ),
            (b"\x16\x03\x01\x02 garbage \xff\n\n".to_vec(), "400"),
            (b"GET /metrics\n\n".to_vec(), "400"),
        ] {
            let answer = ask(address, &question).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {code} ")),
                "{code}: {answer}"
            );
        }
        assert_eq!(
            made.load(Ordering::SeqCst),
            before,
            "no page is made for them"
        );
    }

    #[tokio::test]
    async fn an_endless_question_is_not_heard_out() {
        let (address, made) = serve_page(HEAD_PATIENCE).await;
        let begin = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
        let endless = [begin, vec![b'a'; 2 * HEAD_BYTES_MAX]].concat();
        let answer = ask(address, &endless).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
        assert_eq!(made.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn connections_without_a_question_keep_nobody_out() {
        let (address, made) = serve_page(Duration::from_secs(600)).await;
        let mut others = Vec::new();
        for nth in 0..3 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Half a head is no question either.
            if nth % 2 == 0 {
                stream.write_all(b"GET /metrics HT").await.unwrap();
            }
            others.push(stream);
        }
        let question = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = ask(address, question).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(made.load(Ordering::SeqCst), 1);
        let mut first = Vec::new();
        let closed = others[0].read_to_end(&mut first).await;
        assert!(
            closed.is_err() || first.is_empty(),
            "the oldest one is closed"
        );
    }

    #[tokio::test]
    async fn answers_that_go_on_are_not_cut_off_and_one_more_is_refused() {
        let local = "127.0.0.1:0".parse().unwrap();
        let listener = HttpListener::bind_loopback(local).await.unwrap();
        let address = listener.address();
        let endless = || async {
            let begun = futures::stream::iter([Ok::<_, Infallible>("begun\n")]);
            Body::from_stream(begun.chain(futures::stream::pending()))
        };
        tokio::spawn(listener.serve(Router::new().route("/", get(endless))));
        let question = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut others = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(question).await.unwrap();
            let mut begun = [0];
            stream.read_exact(&mut begun).await.unwrap();
            others.push(stream);
        }
        let refused = ask(address, question).await;
        assert!(
            refused.is_empty() || refused.starts_with("HTTP/1.1 503 "),
            "{refused}"
        );
        drop(others);
        let mut stream = None;
        while stream.is_none() {
            let mut tried = TcpStream::connect(address).await.unwrap();
            let mut answer = [0; 15];
            let _ = tried.write_all(question).await;
            if tried.read_exact(&mut answer).await.is_ok() && &answer == b"HTTP/1.1 200 OK" {
                stream = Some(tried);
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_is_slow_is_closed() {
        let (address, made) = serve_page(Duration::from_millis(1)).await;
        let answer = ask(address, b"GET /metrics HT").await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 408 "),
            "{answer}"
        );
        assert_eq!(made.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn an_address_that_others_reach_and_one_in_use_are_refused_by_name() {
        let open = HttpListener::bind_loopback("0.0.0.0:0".parse().unwrap())
            .await
            .unwrap_err();
        assert!(open.to_string().contains("0.0.0.0:0"), "{open}");
        let (address, _) = serve_page(HEAD_PATIENCE).await;
        let taken = HttpListener::bind_loopback(address).await.unwrap_err();
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
    }
}
