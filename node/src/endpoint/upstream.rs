//! Calls an inference engine over HTTP. It calls only two paths, at one origin, with bodies that it
//! builds from a fixed list of fields, so a buyer can reach no other function of the engine. It
//! follows no redirect, so the engine's key goes to that origin only.

mod cache_salt;
mod continuation;

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::RandomState;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::{self, Client};
use serde_json::{Map, Value, json};
use souk_market::LeaseId;
use souk_roles::lease::truncate_text;
use souk_roles::tokens::text::{Message, Role, TextRequest};
use tokio::time::{Instant, timeout_at};

use super::engine_key::EngineKey;
use super::sse::{AnswerPiece, EventReader, StreamFault, error_message};
use super::transport::{Origin, OriginAddress, UrlFault};

/// How long an engine can send no text, even if it sends other events. The buyer sees only text: it
/// waits a little longer, and then continues at another provider.
const PATIENCE: Patience = Patience {
    first: Duration::from_secs(60),
    pause: Duration::from_secs(20),
};

/// The most times that a request is sent, if the engine closes its connections.
const TRIES_MAX: u32 = 3;

/// Every engine that has seeds takes those up to this one.
const SMALL_SEED_MAX: i64 = i32::MAX as i64;

/// The fields that souk fills in.
const OWN_FIELDS: [&str; 13] = [
    "model",
    "messages",
    "stream",
    "max_tokens",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
    "continue_final_message",
    "add_generation_prompt",
    CACHE_SALT,
];

/// The field that keeps the cached prompts of different tabs apart.
const CACHE_SALT: &str = "cache_salt";

/// The fields that change the form of answers, so that souk would misread or miscount them.
const FORM_FIELDS: [&str; 8] = [
    "n",
    "max_completion_tokens",
    "stream_options",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "echo",
];

/// The most bytes of an answer that is no stream: a list of models, or an error.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A client of one inference engine.
#[derive(Clone)]
pub struct Upstream {
    url: String,
    /// Scheme, host and port, as requests name them.
    base: String,
    is_encrypted: bool,
    client: Client<Origin, Full<Bytes>>,
    /// The path before `/chat/completions`, without a slash at its end.
    path: String,
    key: Option<EngineKey>,
    patience: Patience,
    /// Fields of the provider's owner, which each body has.
    fields: Map<String, Value>,
    /// Whether the engine once refused a request with a small seed and then answered it without
    /// one.
    is_seedless: Arc<AtomicBool>,
    /// Whether it was seen to ignore that it should continue an answer.
    ignores_continuation: Arc<AtomicBool>,
    /// Whether it was seen to take [`CACHE_SALT`].
    takes_salt: Arc<AtomicBool>,
    /// The secret from which salts are made.
    salt_secret: RandomState,
}

/// How long an engine can be without text.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// From the request to the first text: the engine reads a long prompt first. The same for an
    /// answer that is no stream.
    first: Duration,
    /// After a text.
    pause: Duration,
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
    Broken(Box<dyn Error + Send + Sync>),
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
    /// It would begin the answer anew, so it was not asked.
    #[error("the engine does not continue an answer that another provider began")]
    Discontinuous,
}

/// Why a field cannot be one of the owner's.
#[derive(Debug, thiserror::Error)]
pub enum FieldFault {
    /// souk fills it in.
    #[error("souk fills in the field \"{0}\" of each request itself")]
    Own(String),
    /// It changes the form of answers.
    #[error("souk could not read or count answers with the field \"{0}\"")]
    Form(String),
    /// It has no name.
    #[error("a field of a request needs a name")]
    Nameless,
    /// A file cannot hold its value.
    #[error("the field \"{0}\" is null, which has no effect")]
    Null(String),
}

/// An answer that the engine streams.
pub(super) struct Chat {
    body: Incoming,
    events: EventReader,
    pieces: std::collections::VecDeque<Result<AnswerPiece, StreamFault>>,
    has_text: bool,
    /// When the last text came, or the request began.
    last_text: Instant,
    patience: Patience,
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
        let origin = address.into_origin(authorities)?;
        Ok(Upstream {
            url: url.to_owned(),
            base: origin.base_url(),
            is_encrypted: origin.is_encrypted(),
            client: origin.into_client(),
            path: parsed.path().trim_end_matches('/').to_owned(),
            key,
            patience: PATIENCE,
            fields: Map::new(),
            is_seedless: Arc::default(),
            ignores_continuation: Arc::default(),
            takes_salt: Arc::default(),
            salt_secret: RandomState::new(),
        })
    }

    /// Adds fields of the owner to each body.
    ///
    /// # Errors
    /// When souk fills in one of them itself.
    pub fn with_fields(self, fields: &BTreeMap<String, Value>) -> Result<Upstream, FieldFault> {
        for (name, value) in fields {
            check_owner_field(name, value)?;
        }
        let each = fields.iter();
        let fields = each.map(|(name, value)| (name.clone(), value.clone()));
        Ok(Upstream {
            fields: fields.collect(),
            ..self
        })
    }

    /// Waits for text for no longer than so, at first and in pauses.
    #[cfg(test)]
    pub(super) fn with_patience(self, first: Duration, pause: Duration) -> Upstream {
        let patience = Patience { first, pause };
        Upstream { patience, ..self }
    }

    /// Returns the base URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the engine is a service on another machine.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the names of the models that the engine lists.
    ///
    /// # Errors
    /// When the engine does not answer with a list.
    pub async fn fetch_models(&self) -> Result<Vec<String>, UpstreamError> {
        let began = Instant::now();
        let answer = self.send_request(Method::GET, "/models", None, began);
        let body = self.collect_body(answer.await?.into_body(), began).await?;
        let damaged = |error: serde_json::Error| UpstreamError::Damaged(error.to_string());
        let listed: Value = serde_json::from_slice(&body).map_err(damaged)?;
        let models = listed["data"].as_array().into_iter().flatten();
        let names = models.filter_map(|model| model["id"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Begins the streamed answer to a request of a tab. An engine that refuses the seed gets the
    /// request without it, and no seed from then on, if a buyer cannot have caused that. The same
    /// holds for the salt of its cache.
    pub(super) async fn begin_chat(
        &self,
        model: &str,
        tab: LeaseId,
        request: &TextRequest,
    ) -> Result<Chat, UpstreamError> {
        if request.continues && self.ignores_continuation() {
            return Err(UpstreamError::Discontinuous);
        }
        let began = Instant::now();
        let salt = self.cache_salt(tab);
        let send = |seed, salt: Option<String>| {
            let asked = TextRequest {
                seed,
                ..request.clone()
            };
            let mut body = self.to_body(model, &asked);
            if let Some(salt) = salt {
                body[CACHE_SALT] = json!(salt);
            }
            let body = Some(body.to_string());
            self.send_request(Method::POST, "/chat/completions", body, began)
        };
        let is_seedless = self.is_seedless.load(Ordering::Relaxed);
        let seed = request.seed.filter(|_| !is_seedless);
        let answer = match (send(seed, salt.clone()).await, seed) {
            (Err(error), Some(seed)) if error.names_field("seed") => {
                let answer = send(None, salt).await?;
                let is_telling = seed <= SMALL_SEED_MAX && !has_word(request, "seed");
                self.is_seedless.fetch_or(is_telling, Ordering::Relaxed);
                answer
            }
            // Another engine was started, and no buyer's text can have caused the refusal.
            (Err(error), seed)
                if error.names_field(CACHE_SALT) && !has_word(request, CACHE_SALT) =>
            {
                self.takes_salt.store(false, Ordering::Relaxed);
                send(seed, None).await?
            }
            (answer, _) => answer?,
        };
        Ok(Chat {
            body: answer.into_body(),
            events: EventReader::default(),
            pieces: std::collections::VecDeque::new(),
            has_text: false,
            last_text: began,
            patience: self.patience,
            key: self.key.clone(),
        })
    }

    /// Returns the body of a request, with the owner's fields.
    fn to_body(&self, model: &str, request: &TextRequest) -> Value {
        let mut body = chat_body(model, request);
        for (name, value) in &self.fields {
            body[name] = value.clone();
        }
        body
    }

    /// Sends one request, and returns an answer of success.
    async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        began: Instant,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let body = Bytes::from(body.unwrap_or_default());
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            let request = self.build_request(&method, path, body.clone());
            let patience = self.patience.first;
            let sending = timeout_at(began + patience, self.client.request(request)).await;
            match sending.map_err(|_| UpstreamError::Silent(patience))? {
                Ok(answer) => break answer,
                // The engine closed a connection that was idle. No answer has begun, and an engine
                // that reads the same messages again changes nothing.
                Err(error) if tries < TRIES_MAX && is_closed_early(&error) => {}
                Err(error) => return Err(self.explain_failure(error)),
            }
        };
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
        let body = self.collect_body(answer.into_body(), began).await;
        let body = body.unwrap_or_default();
        let message = match serde_json::from_slice::<Value>(&body) {
            Ok(told) => error_message(told.get("error").unwrap_or(&told)),
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        };
        let message = truncate_text(hide_key(self.key.as_ref(), message));
        Err(UpstreamError::Refused { status, message })
    }

    /// Reads the body of an answer that is no stream.
    async fn collect_body(
        &self,
        mut body: Incoming,
        began: Instant,
    ) -> Result<Vec<u8>, UpstreamError> {
        let patience = self.patience.first;
        let mut bytes = Vec::new();
        loop {
            let next = timeout_at(began + patience, body.frame()).await;
            let Some(frame) = next.map_err(|_| UpstreamError::Silent(patience))? else {
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

    fn build_request(&self, method: &Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::builder();
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.header());
        }
        request
            .method(method)
            .uri(format!("{}{}{path}", self.base, self.path))
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("its parts were checked")
    }

    fn explain_failure(&self, error: legacy::Error) -> UpstreamError {
        if !error.is_connect() {
            return UpstreamError::Broken(error.into());
        }
        let source = error.source().and_then(|it| it.downcast_ref::<io::Error>());
        let cause = match source {
            Some(cause) => io::Error::new(cause.kind(), cause.to_string()),
            None => io::Error::other(error),
        };
        UpstreamError::Connect {
            url: self.url.clone(),
            cause,
        }
    }
}

impl UpstreamError {
    /// Returns whether the engine refused a request for the sake of a field, by its own words.
    fn names_field(&self, field: &str) -> bool {
        let UpstreamError::Refused { status, message } = self else {
            return false;
        };
        matches!(status.as_u16(), 400 | 422) && words_of(message).any(|word| word == field)
    }
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Returns whether the text of a request contains this word, which an engine can repeat when it
/// refuses the request.
fn has_word(request: &TextRequest, word: &str) -> bool {
    let messages = request.messages.iter().map(|message| &message.content);
    let mut texts = messages.chain(&request.stop);
    texts.any(|text| words_of(text).any(|found| found == word))
}

/// Returns whether the engine closed the connection before it answered.
fn is_closed_early(error: &legacy::Error) -> bool {
    let Some(error) = error
        .source()
        .and_then(|it| it.downcast_ref::<hyper::Error>())
    else {
        return false;
    };
    let cause = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    let is_reset = cause.is_some_and(|cause| {
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        kinds.contains(&cause.kind())
    });
    is_reset || error.is_incomplete_message()
}

impl From<hyper::Error> for UpstreamError {
    fn from(error: hyper::Error) -> UpstreamError {
        UpstreamError::Broken(error.into())
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Chat {
    /// Reads the stream to its end.
    pub(super) async fn drain(mut self) {
        while let Some(Ok(_)) = self.body.frame().await {}
    }

    /// Waits for the next piece. An answer that ends without a reason counts as broken. Frames
    /// without text, such as comments, do not extend the wait, because the buyer sees only text.
    pub(super) async fn next_piece(&mut self) -> Result<AnswerPiece, UpstreamError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                let piece = piece.map_err(|fault| {
                    let why = truncate_text(hide_key(self.key.as_ref(), fault.to_string()));
                    UpstreamError::Damaged(why)
                })?;
                if !piece.text.is_empty() {
                    (self.has_text, self.last_text) = (true, Instant::now());
                }
                return Ok(piece);
            }
            let patience = match self.has_text {
                true => self.patience.pause,
                false => self.patience.first,
            };
            let until = self.last_text + patience;
            let silent = || UpstreamError::Silent(patience);
            // A frame that is there already comes before the end of the time.
            if until <= Instant::now() {
                return Err(silent());
            }
            let next = timeout_at(until, self.body.frame()).await;
            let frame = next.map_err(|_| silent())?;
            let Some(frame) = frame else {
                let why = "it ended in the middle of an answer".to_owned();
                return Err(UpstreamError::Damaged(why));
            };
            if let Some(bytes) = frame?.data_ref() {
                self.pieces.extend(self.events.push(bytes));
            }
        }
    }
}

/// Checks that a field can be one of the owner's.
fn check_owner_field(name: &str, value: &Value) -> Result<(), FieldFault> {
    if name.is_empty() {
        return Err(FieldFault::Nameless);
    }
    if OWN_FIELDS.contains(&name) {
        return Err(FieldFault::Own(name.to_owned()));
    }
    if FORM_FIELDS.contains(&name) {
        return Err(FieldFault::Form(name.to_owned()));
    }
    match value.is_null() {
        true => Err(FieldFault::Null(name.to_owned())),
        false => Ok(()),
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
        Some(key) => key.redact_key(&message),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use souk_roles::tokens::text::AnswerText;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::endpoint::tests::read_request_body;

    const TEST_PATIENCE: Patience = Patience {
        first: Duration::from_secs(2),
        pause: Duration::from_millis(500),
    };

    /// How often an engine shows that it lives.
    const THOUGHT: Duration = Duration::from_millis(20);

    /// Serves lists of models, so many on each connection, which then closes without a word.
    /// Returns the URL and the number of connections so far.
    async fn serve_lists(lists_per_connection: u32) -> (String, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicU32::new(0));
        let counted = connections.clone();
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    for _ in 0..lists_per_connection {
                        let mut head = Vec::new();
                        while !head.ends_with(b"\r\n\r\n") {
                            head.push(socket.read_u8().await?);
                        }
                        let list = r#"{"data":[{"id":"m"}]}"#;
                        let length = list.len();
                        let answer =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{list}");
                        socket.write_all(answer.as_bytes()).await?;
                    }
                    if lists_per_connection > 0 {
                        // The next request is sent before its connection is closed.
                        let _ = socket.read_u8().await;
                    }
                    io::Result::Ok(())
                });
            }
        });
        (url, connections)
    }

    #[tokio::test]
    async fn requests_that_follow_each_other_share_a_connection() {
        let (url, connections) = serve_lists(u32::MAX).await;
        let engine = Upstream::new(&url, None, None).unwrap();
        for _ in 0..5 {
            assert_eq!(engine.fetch_models().await.unwrap(), ["m"]);
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_request_that_meets_the_end_of_its_connection_is_sent_again() {
        let (url, connections) = serve_lists(1).await;
        let engine = Upstream::new(&url, None, None).unwrap();
        for _ in 0..5 {
            assert_eq!(engine.fetch_models().await.unwrap(), ["m"]);
        }
        assert_eq!(connections.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn an_engine_that_only_closes_connections_is_broken() {
        let (url, connections) = serve_lists(0).await;
        let engine = Upstream::new(&url, None, None).unwrap();
        let error = engine.fetch_models().await.unwrap_err();
        assert!(matches!(error, UpstreamError::Broken(_)), "{error}");
        assert!(connections.load(Ordering::Relaxed) <= TRIES_MAX);
    }

    /// Answers one request after so long: gives this text in one event each, and from then on
    /// comments and events without text.
    async fn serve_thoughts(
        listener: TcpListener,
        head: Duration,
        text: &'static [&'static str],
    ) -> io::Result<std::convert::Infallible> {
        let (mut socket, _) = listener.accept().await?;
        tokio::time::sleep(head).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        socket.write_all(head.as_bytes()).await?;
        for piece in text {
            let event = json!({ "choices": [{ "delta": { "content": piece } }] });
            let event = format!("data: {event}\n\n");
            socket.write_all(event.as_bytes()).await?;
        }
        let empty = json!({ "choices": [{ "delta": { "role": "assistant" } }] });
        let events = format!(": it thinks\n\ndata: {empty}\n\n");
        loop {
            tokio::time::sleep(THOUGHT).await;
            socket.write_all(events.as_bytes()).await?;
        }
    }

    /// Asks such an engine. Returns how long it was silent, by the error and by the clock from the
    /// request or the last text on.
    async fn wait_for_text(head: Duration, text: &'static [&'static str]) -> (Duration, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(serve_thoughts(listener, head, text));
        let engine = Upstream {
            patience: TEST_PATIENCE,
            ..Upstream::new(&url, None, None).unwrap()
        };
        let mut last = Instant::now();
        let request = TextRequest::default();
        let mut chat = match engine.begin_chat("m", LeaseId(1), &request).await {
            Ok(chat) => chat,
            Err(UpstreamError::Silent(patience)) => return (patience, last.elapsed()),
            Err(error) => panic!("{error}"),
        };
        let mut came = Vec::new();
        loop {
            match chat.next_piece().await {
                Ok(piece) if piece.text.is_empty() => {}
                Ok(piece) => {
                    came.push(piece.text.content);
                    last = chat.last_text;
                }
                Err(UpstreamError::Silent(patience)) => {
                    assert_eq!(came, text);
                    return (patience, last.elapsed());
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn an_engine_that_sends_no_text_is_silent_whatever_else_it_sends() {
        let cases: [(Duration, &[&str], Duration); 4] = [
            (Duration::ZERO, &["A market ", "is "], TEST_PATIENCE.pause),
            (Duration::ZERO, &[], TEST_PATIENCE.first),
            // The head is no text.
            (TEST_PATIENCE.first / 2, &[], TEST_PATIENCE.first),
            (TEST_PATIENCE.first * 100, &[], TEST_PATIENCE.first),
        ];
        let cases = cases.map(|(head, text, most)| async move {
            let (patience, waited) = wait_for_text(head, text).await;
            assert_eq!(patience, most, "{head:?}");
            assert!(waited >= most, "{head:?}: {waited:?}");
        });
        futures::future::join_all(cases).await;
    }

    /// Answers requests like an engine that takes only these seeds; without any, like one that
    /// allows no field of another name, such as Mistral's. Sends the seeds that it got.
    async fn serve_strictly(
        listener: TcpListener,
        taken: std::ops::Range<i64>,
        seeds: tokio::sync::mpsc::UnboundedSender<Value>,
    ) -> io::Result<std::convert::Infallible> {
        loop {
            let (mut socket, _) = listener.accept().await?;
            let body = read_request_body(&mut socket).await?;
            let body: Value = serde_json::from_slice(&body)?;
            let fault = json!({ "type": "extra_forbidden", "loc": ["body", "seed"], "input": 3 });
            let seed = &body["seed"];
            let is_taken = seed.as_i64().is_none_or(|seed| taken.contains(&seed));
            let (status, answer) = match is_taken {
                true => ("200 OK", "data: [DONE]\n\n".to_owned()),
                false => (
                    "422 Unprocessable Entity",
                    json!({ "detail": [fault] }).to_string(),
                ),
            };
            let _ = seeds.send(body["seed"].clone());
            let length = answer.len();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
            let head = format!("{head}content-length: {length}\r\n\r\n");
            socket
                .write_all(format!("{head}{answer}").as_bytes())
                .await?;
        }
    }

    /// Sends requests with these seeds and texts to an engine that takes some seeds. Returns the
    /// seeds that the engine got.
    async fn send_seeds(taken: std::ops::Range<i64>, requests: &[(i64, &str)]) -> Vec<Value> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (seeds, mut got) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(serve_strictly(listener, taken, seeds));
        let engine = Upstream::new(&url, None, None).unwrap();
        for (seed, text) in requests {
            let request = TextRequest {
                seed: Some(*seed),
                messages: vec![Message {
                    role: Role::User,
                    content: (*text).to_owned(),
                }],
                ..TextRequest::default()
            };
            engine.begin_chat("m", LeaseId(1), &request).await.unwrap();
        }
        std::iter::from_fn(|| got.try_recv().ok()).collect()
    }

    #[tokio::test]
    async fn an_engine_that_refuses_seeds_gets_none() {
        let none = Value::Null;
        let got = send_seeds(0..0, &[(3, "hi"), (4, "hi")]).await;
        assert_eq!(got, [json!(3), none.clone(), none.clone()]);
        // A seed that few engines take, or a text that the refusal repeats, shows nothing of it.
        let large = i64::from(i32::MAX) + 1;
        let got = send_seeds(0..large, &[(large, "hi"), (5, "hi")]).await;
        assert_eq!(got, [json!(large), none.clone(), json!(5)]);
        let got = send_seeds(0..4, &[(4, "the seed of doubt"), (3, "hi")]).await;
        assert_eq!(got, [json!(4), none, json!(3)]);
    }

    #[test]
    fn a_refusal_names_a_field_by_a_word_of_its_own() {
        let refused = |status, message: &str| UpstreamError::Refused {
            status,
            message: message.to_owned(),
        };
        let unknown = refused(StatusCode::BAD_REQUEST, "Unknown field: 'seed'");
        assert!(unknown.names_field("seed"));
        let other = refused(StatusCode::BAD_REQUEST, "random_seed is unseeded");
        assert!(!other.names_field("seed"));
        let down = refused(StatusCode::INTERNAL_SERVER_ERROR, "seed");
        assert!(!down.names_field("seed"));
    }

    #[test]
    fn each_body_has_the_fields_of_the_owner_and_none_replaces_one_of_souk() {
        let engine = || Upstream::new("http://127.0.0.1:1/v1", None, None).unwrap();
        let fields = |name: &str, value| BTreeMap::from([(name.to_owned(), value)]);
        let request = TextRequest::default();
        let plain = engine()
            .with_fields(&fields("repeat_penalty", json!(1.0)))
            .unwrap();
        let mut expected = chat_body("m", &request);
        expected["repeat_penalty"] = json!(1.0);
        assert_eq!(plain.to_body("m", &request), expected);
        for name in OWN_FIELDS.into_iter().chain(FORM_FIELDS).chain([""]) {
            assert!(
                engine().with_fields(&fields(name, json!(1))).is_err(),
                "{name}"
            );
        }
        assert!(engine().with_fields(&fields("min_p", Value::Null)).is_err());
    }

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
