//! Asks questions over OpenAI's HTTP API with streaming, one connection each, and times each piece
//! of the answer as it comes.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::engine::{MODEL, Question};

/// An answer must end within this time, otherwise it counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The most bytes of an error that the report repeats.
const ERROR_BYTES_MAX: u64 = 300;

/// A server with OpenAI's HTTP API.
#[derive(Clone, Debug)]
pub(super) struct Target {
    address: SocketAddr,
    key: Option<String>,
}

/// A whole answer, and when it came.
#[derive(Clone, Debug)]
pub(super) struct TimedAnswer {
    /// The text of all pieces.
    pub text: String,
    /// The time from the request to the first piece.
    pub to_first: Duration,
    /// The time from the request to the end of the stream.
    pub to_end: Duration,
    /// The longest time between two pieces.
    pub pause_max: Duration,
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("the stream ended early")]
    Ended,
}

impl Target {
    pub fn new(address: SocketAddr, key: Option<String>) -> Target {
        Target { address, key }
    }

    /// Asks a question and returns its whole answer.
    ///
    /// # Errors
    /// If the answer is refused, ends early, or takes too long.
    pub async fn ask(&self, question: Question) -> Result<TimedAnswer, AskError> {
        let messages = json!([{ "role": "user", "content": question.to_content() }]);
        self.fetch_answer(json!({ "model": MODEL, "messages": messages, "stream": true }))
            .await
    }

    /// Asks for the rest of an answer, as souk asks an engine.
    #[cfg(test)]
    pub async fn continue_answer(
        &self,
        question: Question,
        begun: &str,
    ) -> Result<TimedAnswer, AskError> {
        let messages = json!([
            { "role": "user", "content": question.to_content() },
            { "role": "assistant", "content": begun },
        ]);
        let body = json!({ "messages": messages, "continue_final_message": true });
        self.fetch_answer(body).await
    }

    async fn fetch_answer(&self, body: Value) -> Result<TimedAnswer, AskError> {
        let answer = timeout(ANSWER_TIMEOUT, self.read_answer(&body)).await;
        answer.unwrap_or(Err(AskError::Timeout))
    }

    async fn read_answer(&self, body: &Value) -> Result<TimedAnswer, AskError> {
        let begin = Instant::now();
        let mut stream = BufReader::new(TcpStream::connect(self.address).await?);
        stream.get_ref().set_nodelay(true)?;
        let (body, host) = (body.to_string(), self.address);
        let mut head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        if let Some(key) = &self.key {
            head += &format!("authorization: Bearer {key}\r\n");
        }
        stream
            .write_all(format!("{head}\r\n{body}").as_bytes())
            .await?;
        let mut status = String::new();
        stream.read_line(&mut status).await?;
        if !status.starts_with("HTTP/1.1 200 ") {
            let mut rest = String::new();
            stream
                .take(ERROR_BYTES_MAX)
                .read_to_string(&mut rest)
                .await?;
            let cause = rest.lines().last().unwrap_or_default();
            return Err(AskError::Refused(format!("{} {cause}", status.trim_end())));
        }
        read_pieces(stream, begin).await
    }
}

/// Reads the pieces of a stream up to `[DONE]`.
async fn read_pieces(
    mut stream: BufReader<TcpStream>,
    begin: Instant,
) -> Result<TimedAnswer, AskError> {
    let mut answer = TimedAnswer {
        text: String::new(),
        to_first: Duration::ZERO,
        to_end: Duration::ZERO,
        pause_max: Duration::ZERO,
    };
    let (mut line, mut last) = (String::new(), begin);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err(AskError::Ended);
        }
        let Some(event) = line.trim_end().strip_prefix("data: ") else {
            continue;
        };
        if event == "[DONE]" {
            answer.to_end = begin.elapsed();
            return Ok(answer);
        }
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(AskError::Refused(message.to_owned()));
        }
        let piece = event["choices"][0]["delta"]["content"].as_str();
        let Some(piece) = piece.filter(|piece| !piece.is_empty()) else {
            continue;
        };
        match answer.text.is_empty() {
            true => answer.to_first = begin.elapsed(),
            false => answer.pause_max = answer.pause_max.max(last.elapsed()),
        }
        last = Instant::now();
        answer.text += piece;
    }
}
