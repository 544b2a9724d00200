//! A fake inference engine with OpenAI's HTTP API, for measurements: a question says how many
//! pieces its answer has and how long the engine pauses before each, and both sides can compute
//! the text. If a question brings the beginning of an answer, the engine continues it, as after the
//! loss of a provider, and records that it did.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The model that the engine serves.
pub(super) const MODEL: &str = "souk/bench";

/// A question, whose only message is its three numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// Its number: no two answers are alike.
    pub number: u64,
    /// The pieces of its answer.
    pub pieces: u32,
    /// The engine's pause before each piece, in milliseconds.
    pub pause_ms: u64,
}

impl Question {
    /// Returns the content of its message.
    pub fn to_content(self) -> String {
        format!("{} {} {}", self.number, self.pieces, self.pause_ms)
    }

    fn from_content(content: &str) -> Option<Question> {
        let mut numbers = content.split(' ').map(|number| number.parse::<u64>().ok());
        Some(Question {
            number: numbers.next()??,
            pieces: u32::try_from(numbers.next()??).ok()?,
            pause_ms: numbers.next()??,
        })
    }

    /// Returns the answer in its pieces; each ends with a space.
    pub fn answer_pieces(self) -> Vec<String> {
        let piece = |place| format!("{}.{place} ", self.number);
        (0..self.pieces).map(piece).collect()
    }
}

/// An engine that serves until it is dropped.
pub(super) struct Engine {
    address: SocketAddr,
    continued: Arc<Mutex<BTreeSet<u64>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Engine {
    /// Starts an engine on a free port of this machine.
    pub async fn start() -> io::Result<Engine> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let continued = Arc::<Mutex<BTreeSet<u64>>>::default();
        let noted = continued.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let noted = noted.clone();
                // A connection that breaks is its client's to notice.
                tokio::spawn(async move { serve_request(stream, &noted).await.ok() });
            }
        });
        Ok(Engine {
            address,
            continued,
            serving,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the numbers of the questions whose answers it continued.
    pub fn continued_answers(&self) -> BTreeSet<u64> {
        let continued = self
            .continued
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        continued.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve_request(stream: TcpStream, continued: &Mutex<BTreeSet<u64>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first).await?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().unwrap_or(0);
        }
    }
    if first.starts_with("GET /v1/models ") {
        let models = json!({ "data": [{ "id": MODEL }] }).to_string();
        return write_answer(&mut stream, "200 OK", &models).await;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let question = body["messages"][0]["content"].as_str();
    let Some(question) = question.and_then(Question::from_content) else {
        return write_answer(&mut stream, "400 Bad Request", "{}").await;
    };
    let begun = match body["continue_final_message"] == json!(true) {
        true => {
            let mut numbers = continued.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.insert(question.number);
            let messages = body["messages"].as_array();
            let last = messages.and_then(|messages| messages.last()?["content"].as_str());
            last.unwrap_or_default()
        }
        false => "",
    };
    write_pieces(&mut stream, question, begun).await
}

/// Streams the part of the answer that follows `begun`.
async fn write_pieces(
    stream: &mut BufReader<TcpStream>,
    question: Question,
    begun: &str,
) -> io::Result<()> {
    let text = question.answer_pieces().concat();
    let Some(rest) = text.strip_prefix(begun) else {
        return write_answer(stream, "400 Bad Request", "{}").await;
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for piece in rest.split_inclusive(' ') {
        if question.pause_ms > 0 {
            tokio::time::sleep(Duration::from_millis(question.pause_ms)).await;
        }
        let chunk = json!({ "choices": [{ "delta": { "content": piece } }] });
        let event = format!("data: {chunk}\n\n");
        stream.write_all(event.as_bytes()).await?;
    }
    let end = json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] });
    let event = format!("data: {end}\n\ndata: [DONE]\n\n");
    stream.write_all(event.as_bytes()).await
}

async fn write_answer(
    stream: &mut BufReader<TcpStream>,
    status: &str,
    body: &str,
) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n");
    let answer = format!("{head}connection: close\r\n\r\n{body}");
    stream.write_all(answer.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token_bench::chat_client::Target;

    #[tokio::test]
    async fn an_engine_answers_and_continues_its_own_answer_only() {
        let engine = Engine::start().await.expect("a port is free");
        let target = Target::new(engine.address(), None);
        let question = Question {
            number: 7,
            pieces: 3,
            pause_ms: 0,
        };
        let answer = target.ask(question).await.expect("it answers");
        assert_eq!(answer.text, "7.0 7.1 7.2 ");
        assert!(engine.continued_answers().is_empty());
        let begun = target.continue_answer(question, "7.0 7.").await;
        assert_eq!(begun.expect("it goes on").text, "1 7.2 ");
        assert_eq!(engine.continued_answers(), [7].into());
        let foreign = target.continue_answer(question, "8.0 ").await;
        assert!(foreign.unwrap_err().to_string().contains("400"));
    }
}
