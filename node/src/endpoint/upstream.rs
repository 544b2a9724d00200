//! Calls an inference engine over HTTP. Only two paths are called, at one origin, with bodies that
//! are built from a list of fields: a buyer reaches nothing else of it. No redirect is followed, so
//! the engine's key goes to that origin alone.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::{Map, Value, json};
use souk_roles::lease::truncate_text;
use souk_roles::tokens::text::{Message, Role, TextRequest};
use tokio::time::timeout;

use super::engine_key::EngineKey;
use super::sse::{AnswerPiece, EventReader, error_message};
use super::transport::{Origin, OriginAddress, UrlFault};

/// How long an engine can be silent before its first text: it reads a long prompt first.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long text that has begun can pause. Its buyer waits a little longer, and then goes on at
/// another provider.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// The most bytes of an answer that is no stream: a list of models, or an error.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The address of an engine.
#[derive(Clone, Debug)]
pub struct Upstream {
    url: String,
    origin: Origin,
    /// The path before `/chat/completions`, without a slash at its end.
    path: String,
    key: Option<EngineKey>,
}

/// Why an engine gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// It does not accept connections.
    #[error("the engine at {url} does not answer: {cause}; is it running?")]
    Connect {
        /// The engine's URL.
        url: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the engine broke: {0}")]
    Broken(#[from] hyper::Error),
    /// It has no room now.
    #[error("the engine is busy: it answered {status}")]
    Busy {
        /// The HTTP status.
        status: StatusCode,
    },
    /// It refused the request.
    #[error("the engine answered {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Its message.
        message: String,
    },
    /// It was silent for too long.
    #[error("the engine was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// Its answer is not valid.
    #[error("the engine's answer is damaged: {0}")]
    Damaged(String),
}

/// A streamed answer.
pub(super) struct Chat {
    body: Incoming,
    events: EventReader,
    pieces: std::collections::VecDeque<AnswerPiece>,
    has_text: bool,
    key: Option<EngineKey>,
}

impl Upstream {
    /// Reads the base URL of an engine, such as `http://127.0.0.1:8000/v1`. `key` is the
    /// one that the engine wants, if it wants one; `authorities` is the file of the authorities
    /// that can vouch for an `https` host, or else they are the system's.
    ///
    /// # Errors
    /// When it is neither an `https` URL nor an `http` URL of this machine, or when the authorities
    /// cannot be read.
    pub fn new(
        url: &str,
        key: Option<EngineKey>,
        authorities: Option<&Path>,
    ) -> Result<Upstream, UrlFault> {
        let parsed: Uri = url.parse().map_err(|_| UrlFault::Syntax(url.to_owned()))?;
        let address = OriginAddress::read(url, &parsed)?;
        Ok(Upstream {
            url: url.to_owned(),
            origin: address.into_origin(authorities)?,
            path: parsed.path().trim_end_matches('/').to_owned(),
            key,
        })
    }

    /// Returns the base URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the engine is a service on another machine.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.origin.is_encrypted()
    }

    /// Returns the names of the models that the engine lists.
    ///
    /// # Errors
    /// When the engine does not answer with a list.
    pub async fn fetch_models(&self) -> Result<Vec<String>, UpstreamError> {
        let answer = self.send_request(Method::GET, "/models", None).await?;
        let body = collect_body(answer.into_body()).await?;
        let damaged = |error: serde_json::Error| UpstreamError::Damaged(error.to_string());
        let listed: Value = serde_json::from_slice(&body).map_err(damaged)?;
        let models = listed["data"].as_array().into_iter().flatten();
        let names = models.filter_map(|model| model["id"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Begins the streamed answer to a request.
    pub(super) async fn begin_chat(
        &self,
        model: &str,
        request: &TextRequest,
    ) -> Result<Chat, UpstreamError> {
        let body = chat_body(model, request).to_string();
        let path = "/chat/completions";
        let answer = self.send_request(Method::POST, path, Some(body)).await?;
        Ok(Chat {
            body: answer.into_body(),
            events: EventReader::default(),
            pieces: std::collections::VecDeque::new(),
            has_text: false,
            key: self.key.clone(),
        })
    }

    /// Sends one request on a connection of its own, and returns an answer of success.
    async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let connecting = self.origin.connect().await;
        let mut sender = connecting.map_err(|cause| UpstreamError::Connect {
            url: self.url.clone(),
            cause,
        })?;
        let mut request = Request::builder();
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.header());
        }
        let request = request
            .method(method)
            .uri(format!("{}{path}", self.path))
            .header(HOST, &self.origin.authority)
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .expect("its parts were checked");
        let sending = timeout(SILENCE_MAX, sender.send_request(request)).await;
        let answer = sending.map_err(|_| UpstreamError::Silent(SILENCE_MAX))??;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        if matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            return Err(UpstreamError::Busy { status });
        }
        let body = collect_body(answer.into_body()).await.unwrap_or_default();
        let message = match serde_json::from_slice::<Value>(&body) {
            Ok(told) => error_message(told.get("error").unwrap_or(&told)),
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        };
        let message = truncate_text(hide_key(self.key.as_ref(), message));
        Err(UpstreamError::Refused { status, message })
    }
}

impl Chat {
    /// Reads the stream to its end.
    pub(super) async fn drain(mut self) {
        while let Some(Ok(_)) = self.body.frame().await {}
    }

    /// Waits for the next piece. An answer that ends without a reason is broken.
    pub(super) async fn next_piece(&mut self) -> Result<AnswerPiece, UpstreamError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                self.has_text |= !piece.text.is_empty();
                return Ok(piece);
            }
            let patience = match self.has_text {
                true => PAUSE_MAX,
                false => SILENCE_MAX,
            };
            let next = timeout(patience, self.body.frame()).await;
            let frame = next.map_err(|_| UpstreamError::Silent(patience))?;
            let Some(frame) = frame else {
                let why = "it ended in the middle of an answer".to_owned();
                return Err(UpstreamError::Damaged(why));
            };
            if let Some(bytes) = frame?.data_ref() {
                let pieces = self.events.push(bytes).map_err(|fault| {
                    let why = truncate_text(hide_key(self.key.as_ref(), fault.to_string()));
                    UpstreamError::Damaged(why)
                })?;
                self.pieces.extend(pieces);
            }
        }
    }
}

/// Returns the body of a request: these fields and no others.
fn chat_body(model: &str, request: &TextRequest) -> Value {
    let message = |message: &Message| {
        let role = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        json!({ "role": role, "content": message.content })
    };
    let messages: Vec<Value> = request.messages.iter().map(message).collect();
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("messages".to_owned(), json!(messages));
    body.insert("stream".to_owned(), json!(true));
    body.insert("max_tokens".to_owned(), json!(request.tokens_max));
    let numbers = [
        ("temperature", request.temperature),
        ("top_p", request.top_p),
        ("frequency_penalty", request.frequency_penalty),
        ("presence_penalty", request.presence_penalty),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            body.insert(name.to_owned(), json!(value));
        }
    }
    if let Some(seed) = request.seed {
        body.insert("seed".to_owned(), json!(seed));
    }
    if !request.stop.is_empty() {
        body.insert("stop".to_owned(), json!(request.stop));
    }
    if request.continues {
        // vLLM and SGLang want the first; llama-server too, and Ollama continues by itself.
        body.insert("continue_final_message".to_owned(), json!(true));
        body.insert("add_generation_prompt".to_owned(), json!(false));
    }
    Value::Object(body)
}

/// Returns a message of the engine without its key.
fn hide_key(key: Option<&EngineKey>, message: String) -> String {
    match key {
        Some(key) => key.hide_in(&message),
        None => message,
    }
}

async fn collect_body(mut body: Incoming) -> Result<Vec<u8>, UpstreamError> {
    let mut bytes = Vec::new();
    loop {
        let next = timeout(SILENCE_MAX, body.frame()).await;
        let Some(frame) = next.map_err(|_| UpstreamError::Silent(SILENCE_MAX))? else {
            return Ok(bytes);
        };
        if let Some(data) = frame?.data_ref() {
            bytes.extend_from_slice(data);
        }
        if bytes.len() > BODY_BYTES_MAX {
            let why = format!("it has more than {BODY_BYTES_MAX} bytes");
            return Err(UpstreamError::Damaged(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_roles::tokens::text::AnswerText;

    use super::*;

    #[test]
    fn the_engine_sees_listed_fields_alone() {
        let request = TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: "hi".to_owned(),
            }],
            tokens_max: 8,
            seed: Some(3),
            ..TextRequest::default()
        };
        let body = chat_body("m", &request);
        let expected = json!({
            "model": "m", "stream": true, "max_tokens": 8, "seed": 3,
            "messages": [{ "role": "user", "content": "hi" }],
        });
        assert_eq!(body, expected);
        let text = AnswerText {
            content: "hello".to_owned(),
            ..AnswerText::default()
        };
        let rest = request.to_rest(&text).unwrap().unwrap();
        let expected = json!({
            "model": "m", "stream": true, "max_tokens": 6, "seed": 3,
            "continue_final_message": true, "add_generation_prompt": false,
            "messages": [
                { "role": "user", "content": "hi" }, { "role": "assistant", "content": "hello" },
            ],
        });
        assert_eq!(chat_body("m", &rest), expected);
    }
}
