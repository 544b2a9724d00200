//! Finds out whether an engine continues an answer that its messages end with. Some ignore the
//! fields that ask for it, and begin anew in words that nobody can tell from a continuation; so the
//! probe compares how many tokens the engine says it read.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use souk_roles::tokens::text::{Message, Role, TextRequest};
use tokio::time::{Instant, timeout_at};

use super::{Upstream, UpstreamError};
use crate::endpoint::is_refusal;

/// How long the probe for continuation can take. An engine that is slower counts as one that
/// continues, so a provider starts soon.
pub(super) const PROBE_MAX: Duration = Duration::from_secs(10);

/// The tokens of the answer in the probe: a letter is one in every tokeniser. An engine that
/// ignores the fields reads the mark after it too, and mostly that of a further answer.
const BEGUN_TOKENS: u64 = 1;

/// The fields that ask an engine to continue the answer that its messages end with.
const CONTINUATION_FIELDS: [&str; 2] = ["continue_final_message", "add_generation_prompt"];

impl Upstream {
    /// Returns whether the engine was seen to ignore that it should continue an answer.
    pub(in crate::endpoint) fn ignores_continuation(&self) -> bool {
        self.ignores_continuation.load(Ordering::Relaxed)
    }

    /// Notes whether the engine continues an answer that the messages end with; an engine that
    /// ignores the fields for that answers anew, in words that nobody can tell from a continuation.
    /// An engine that continues reads little more than the answer so far. One that ignores the
    /// fields reads the marks of a further message too, as many as without the fields; some
    /// templates add marks to a last answer, so that alone shows nothing. If the engine does not
    /// tell how much it read, souk takes it for one that continues, and if it refuses the fields,
    /// for one that does not.
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
        let [fresh, rest] = [&fresh, &rest].map(|request| self.to_body(model, request));
        let judged = timeout_at(Instant::now() + PROBE_MAX, self.judge_prompts(fresh, rest));
        let ignores = judged.await.ok().flatten().unwrap_or_default();
        self.ignores_continuation.store(ignores, Ordering::Relaxed);
    }

    /// Returns whether the engine ignores the fields by which `rest` asks for a continuation; none
    /// if it does not tell how much it read.
    async fn judge_prompts(&self, fresh: Value, rest: Value) -> Option<bool> {
        let mut plain = rest.clone();
        for field in CONTINUATION_FIELDS {
            plain.as_object_mut()?.remove(field);
        }
        let fresh = self.count_prompt(fresh).await.ok()??;
        let rest = match self.count_prompt(rest).await {
            Err(UpstreamError::Refused { status, .. }) if is_refusal(status) => return Some(true),
            counted => counted.ok()??,
        };
        if rest <= fresh.saturating_add(BEGUN_TOKENS) {
            return Some(false);
        }
        Some(rest >= self.count_prompt(plain).await.ok()??)
    }

    /// Returns how many tokens of a request the engine says it read; none if it says nothing.
    pub(super) async fn count_prompt(&self, mut body: Value) -> Result<Option<u64>, UpstreamError> {
        let began = Instant::now();
        body["stream"] = json!(false);
        let body = Some(body.to_string());
        let answer = self.send_request(Method::POST, "/chat/completions", body, began);
        let body = self.collect_body(answer.await?.into_body(), began).await?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok(answer["usage"]["prompt_tokens"].as_u64())
    }
}

#[cfg(test)]
mod tests {
    use souk_market::LeaseId;
    use souk_roles::tokens::text::AnswerText;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::endpoint::tests::read_request_body;
    use crate::endpoint::upstream::UpstreamError;

    /// Answers each request by the tokens that the engine reads of a question, of one with the
    /// beginning of an answer, and of that without the fields that ask to continue it. If there is
    /// no number of the second, the engine refuses those fields.
    async fn serve_counts(
        listener: TcpListener,
        [fresh, rest, plain]: [Value; 3],
    ) -> std::io::Result<std::convert::Infallible> {
        loop {
            let (mut socket, _) = listener.accept().await?;
            let body = read_request_body(&mut socket).await?;
            let body: Value = serde_json::from_slice(&body)?;
            let count = match body["messages"].as_array().map(Vec::len) {
                Some(1) => &fresh,
                _ if body["continue_final_message"] == json!(true) => &rest,
                _ => &plain,
            };
            let answer = json!({ "usage": { "prompt_tokens": count } }).to_string();
            let status = match count == "refused" {
                true => "400 Bad Request",
                false => "200 OK",
            };
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
            let head = format!("{head}content-length: {}\r\n\r\n", answer.len());
            socket
                .write_all(format!("{head}{answer}").as_bytes())
                .await?;
        }
    }

    /// Returns whether an engine that reads so many tokens is asked to continue an answer.
    async fn is_asked_to_continue(counts: [Value; 3]) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(serve_counts(listener, counts));
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
        assert!(engine.begin_chat("m", LeaseId(1), &asked).await.is_ok());
        match engine.begin_chat("m", LeaseId(1), &rest).await {
            Ok(_) => true,
            Err(UpstreamError::Discontinuous) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn an_engine_that_would_begin_anew_is_not_asked_to_continue() {
        let [letter, two_marks, none] = [json!(8), json!(10), Value::Null];
        // The letter alone, and the letter with the marks of two messages.
        assert!(is_asked_to_continue([json!(7), letter, two_marks.clone()]).await);
        assert!(!is_asked_to_continue([json!(7), two_marks.clone(), two_marks]).await);
        // A template that adds marks to a last answer, and an engine that leaves it open.
        assert!(is_asked_to_continue([json!(12), json!(17), json!(19)]).await);
        // One that tells nothing, or only what it had not cached.
        assert!(is_asked_to_continue([none.clone(), none.clone(), none]).await);
        assert!(is_asked_to_continue([json!(7), json!(1), json!(1)]).await);
        // One that refuses the fields.
        assert!(!is_asked_to_continue([json!(7), json!("refused"), json!(9)]).await);
    }
}
