//! Finds out whether an engine continues an answer that its messages end with. Some ignore the
//! fields that ask for it, and begin anew in words that nobody can tell from a continuation; so the
//! probe compares how many tokens the engine says it read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use souk_roles::tokens::text::{Message, Role, TextRequest};
use tokio::time::{Instant, timeout_at};

use super::Upstream;

/// How long the probe for continuation can take. An engine that is slower counts as one that
/// continues, so a provider starts soon.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// The tokens of the answer in the probe: a letter is one in every tokeniser. An engine that
/// ignores the fields reads the mark after it too, and mostly that of a further answer.
const BEGUN_TOKENS: u64 = 1;

impl Upstream {
    /// Returns whether the engine was seen to ignore that it should continue an answer.
    pub(in crate::endpoint) fn ignores_continuation(&self) -> bool {
        self.ignores_continuation.load(Ordering::Relaxed)
    }

    /// Notes whether the engine continues an answer that the messages end with; an engine that
    /// ignores the fields for that answers anew, in words that nobody can tell from a continuation.
    /// An engine that continues reads little more than the answer so far, one that ignores them
    /// reads the marks of a further message too. If the engine does not tell how much it read, souk
    /// takes it for one that continues.
    pub(in crate::endpoint) async fn probe_continuation(&self, model: &str) {
        let user = Message {
            role: Role::User,
            content: "Name a letter.".to_owned(),
        };
        let begun = Message {
            role: Role::Assistant,
            content: "A".to_owned(),
        };
        let fresh = TextRequest {
            messages: vec![user.clone()],
            tokens_max: 1,
            ..TextRequest::default()
        };
        let rest = TextRequest {
            messages: vec![user, begun],
            continues: true,
            ..fresh.clone()
        };
        let until = Instant::now() + PROBE_MAX;
        let ask = async |request| self.count_prompt(model, request).await;
        let both = async { Some((ask(&fresh).await?, ask(&rest).await?)) };
        let Ok(Some((fresh, rest))) = timeout_at(until, both).await else {
            return;
        };
        let ignores = rest > fresh.saturating_add(BEGUN_TOKENS);
        self.ignores_continuation.store(ignores, Ordering::Relaxed);
    }

    /// Returns how many tokens of a request the engine says it read.
    async fn count_prompt(&self, model: &str, request: &TextRequest) -> Option<u64> {
        let began = Instant::now();
        let mut body = self.to_body(model, request);
        body["stream"] = json!(false);
        let body = Some(body.to_string());
        let answer = self.send_request(Method::POST, "/chat/completions", body, began);
        let body = self.collect_body(answer.await.ok()?.into_body(), began);
        let answer: Value = serde_json::from_slice(&body.await.ok()?).ok()?;
        answer["usage"]["prompt_tokens"].as_u64()
    }
}

#[cfg(test)]
mod tests {
    use souk_roles::tokens::text::AnswerText;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::endpoint::tests::read_request_body;
    use crate::endpoint::upstream::UpstreamError;

    /// Answers each request by the tokens that the engine reads of a question, or of one with the
    /// beginning of an answer.
    async fn serve_counts(
        listener: TcpListener,
        fresh: Value,
        rest: Value,
    ) -> std::io::Result<std::convert::Infallible> {
        loop {
            let (mut socket, _) = listener.accept().await?;
            let body = read_request_body(&mut socket).await?;
            let body: Value = serde_json::from_slice(&body)?;
            let count = match body["messages"].as_array().map(Vec::len) {
                Some(1) => &fresh,
                _ => &rest,
            };
            let answer = json!({ "usage": { "prompt_tokens": count } }).to_string();
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n";
            let head = format!("{head}content-length: {}\r\n\r\n", answer.len());
            socket
                .write_all(format!("{head}{answer}").as_bytes())
                .await?;
        }
    }

    /// Returns whether an engine that reads so many tokens is asked to continue an answer.
    async fn is_asked_to_continue(fresh: Value, rest: Value) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(serve_counts(listener, fresh, rest));
        let engine = Upstream::new(&url, None, None).unwrap();
        engine.probe_continuation("m").await;
        let begun = AnswerText {
            content: "A market ".to_owned(),
            ..AnswerText::default()
        };
        let asked = TextRequest {
            tokens_max: 100,
            ..TextRequest::default()
        };
        let rest = asked.to_rest(&begun).unwrap().unwrap();
        assert!(engine.begin_chat("m", &asked).await.is_ok());
        match engine.begin_chat("m", &rest).await {
            Ok(_) => true,
            Err(UpstreamError::Discontinuous) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn an_engine_that_would_begin_anew_is_not_asked_to_continue() {
        // The letter alone, and the letter with the marks of two messages.
        assert!(is_asked_to_continue(json!(7), json!(8)).await);
        assert!(!is_asked_to_continue(json!(7), json!(10)).await);
        // One that tells nothing, or only what it had not cached.
        assert!(is_asked_to_continue(Value::Null, Value::Null).await);
        assert!(is_asked_to_continue(json!(7), json!(1)).await);
    }
}
