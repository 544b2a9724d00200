//! A fake inference engine with OpenAI's HTTP API. It is strict: it refuses each path, header and
//! field that souk should not send. It also plays each [`Manner`] in which an engine can fail, so
//! that tests show what a buyer gets and pays then.
//!
//! ```
//! use souk_node_testing::fake_engine::{FakeEngine, Manner};
//!
//! let engine = FakeEngine::start(Manner::Well);
//! assert!(engine.url.starts_with("http://127.0.0.1:"));
//! engine.set_manner(Manner::Busy);
//! assert!(engine.requests().is_empty() && engine.refusals().is_empty());
//! ```

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// The model that the engine has.
pub const MODEL: &str = "qwen/qwen3-8b";

/// The engine's answer, in pieces.
pub const PIECES: [&str; 4] = ["A market ", "is where ", "strangers ", "trade."];

/// The key that the engine wants.
pub const KEY: &str = "sk-of-the-engine";

/// The pieces that an engine gives before it fails in the middle of an answer.
pub const PIECES_BEFORE_FAULT: usize = 2;

/// The tokens that an engine claims if it states a wrong usage.
pub const CLAIMED_TOKENS: u64 = 1_000_000;

/// How long a slow engine takes for a piece.
const SLOW: Duration = Duration::from_millis(400);

/// The bytes of a piece, and the pieces, of an engine that ignores the limit of the answer.
const PADDING_BYTES: usize = 64;
const PADDING_PIECES: usize = 1_000;

/// The paths that the engine has.
const MODELS_LINE: &str = "GET /v1/models HTTP/1.1";
const CHAT_LINE: &str = "POST /v1/chat/completions HTTP/1.1";
const CHAT_PATH: &str = "/v1/chat/completions";

/// The headers that souk sends.
const HEADERS: [&str; 5] = [
    "host",
    "authorization",
    "accept",
    "content-type",
    "content-length",
];

/// The fields that souk sends.
const FIELDS: [&str; 12] = [
    "model",
    "messages",
    "stream",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "continue_final_message",
    "add_generation_prompt",
];

/// The field that an engine has only if it [caches](Manner::Caches).
const CACHE_SALT: &str = "cache_salt";

/// How an engine behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It answers.
    Well,
    /// It has no room: 429.
    Busy,
    /// It fails: 500.
    Crashes,
    /// It ends its stream in the middle of the answer.
    Breaks,
    /// It ends its stream in the middle of a line.
    HalfLine,
    /// It gives each line in two halves, and the whole answer.
    HalfLines,
    /// It sends an event that is no JSON, in the middle of the answer.
    BadEvent,
    /// It reports an error in its stream before any text.
    Fails,
    /// It reports an error in its stream, in the middle of the answer.
    FailsLate,
    /// It reads the request, and sends nothing.
    Silent,
    /// It sends the head of an answer, and then nothing.
    SilentBeforeText,
    /// It sends nothing more in the middle of the answer.
    Stalls,
    /// It claims far more tokens than it gave, in each event.
    WrongUsage,
    /// It ends the answer without any text.
    Empty,
    /// It gives far more text than the request allows.
    Pads,
    /// It ignores that it should stream.
    Whole,
    /// It begins each answer anew, also one that it should continue.
    Anew,
    /// It refuses every request.
    Refuses,
    /// It waits a while before each piece.
    Slow,
    /// It sends its clients to another path of its own.
    Moved,
    /// It lists its models, and then refuses the key, which it repeats.
    Revoked,
    /// It refuses each request with this status, and repeats the key.
    Repeats {
        /// The HTTP status.
        status: u16,
    },
    /// It sends its clients to this port of the machine, with this status.
    Redirects {
        /// The HTTP status.
        status: u16,
        /// The port of another origin.
        port: u16,
    },
    /// It answers, and takes the salt that keeps cached prompts apart.
    Caches,
}

/// A running engine; it listens until the test's process ends.
#[derive(Clone, Debug)]
pub struct FakeEngine {
    /// The base URL of its API.
    pub url: String,
    port: u16,
    state: Arc<EngineState>,
}

#[derive(Debug)]
struct EngineState {
    manner: Mutex<Manner>,
    connections: AtomicUsize,
    requests: Mutex<Vec<Value>>,
    refusals: Mutex<Vec<String>>,
}

/// A request as the engine read it.
struct HttpRequest {
    first_line: String,
    has_key: bool,
    /// The first header that souk should not send.
    odd_header: Option<String>,
    body: Value,
}

impl FakeEngine {
    /// Starts an engine on a free port of this machine.
    #[must_use]
    pub fn start(manner: Manner) -> FakeEngine {
        FakeEngine::start_behind("http", manner, |stream| stream)
    }

    /// Starts an engine whose connections are opened by `open`, such as by TLS.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start_behind<S: Read + Write>(
        scheme: &str,
        manner: Manner,
        open: impl Fn(TcpStream) -> S + Clone + Send + 'static,
    ) -> FakeEngine {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(EngineState {
            manner: Mutex::new(manner),
            connections: AtomicUsize::new(0),
            requests: Mutex::default(),
            refusals: Mutex::default(),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (state, open) = (shared.clone(), open.clone());
                std::thread::spawn(move || drop(state.serve(open(stream))));
            }
        });
        FakeEngine {
            url: format!("{scheme}://{address}/v1"),
            port: address.port(),
            state,
        }
    }

    /// Changes how the engine behaves from the next request on.
    pub fn set_manner(&self, manner: Manner) {
        *lock(&self.state.manner) = manner;
    }

    /// Returns the port that the engine listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// Returns the bodies of the requests for answers so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Value> {
        lock(&self.state.requests).clone()
    }

    /// Returns the paths, headers and fields so far that souk should not have sent.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        lock(&self.state.refusals).clone()
    }
}

impl EngineState {
    /// Serves one request, and closes the connection.
    fn serve(&self, stream: impl Read + Write) -> Result<()> {
        let mut reader = BufReader::new(stream);
        let request = read_request(&mut reader)?;
        let mut stream = reader.into_inner();
        let manner = *lock(&self.manner);
        if let Some(odd) = request.find_odd_part(manner) {
            lock(&self.refusals).push(odd.clone());
            return answer_error(&mut stream, "400 Bad Request", &odd);
        }
        if !request.has_key {
            return answer_error(&mut stream, "401 Unauthorized", "no key");
        }
        if request.first_line == MODELS_LINE {
            let models = json!({ "data": [{ "id": MODEL }] }).to_string();
            return answer(&mut stream, "200 OK", &models);
        }
        if request.body["stream"] == json!(false) {
            // souk tries at its start whether the engine continues answers; this one does not tell.
            return answer(&mut stream, "200 OK", "{}");
        }
        lock(&self.requests).push(request.body.clone());
        if let Some((status, message)) = manner.to_refusal() {
            return answer_error(&mut stream, &status, &message);
        }
        match manner {
            Manner::Silent => wait_for_close(&mut stream),
            Manner::Whole => {
                let message = json!({ "content": PIECES.concat() });
                let whole = json!({ "choices": [{ "message": message, "finish_reason": "stop" }] });
                answer(&mut stream, "200 OK", &whole.to_string())
            }
            manner => stream_answer(&mut stream, manner, &request.body),
        }
    }
}

impl Manner {
    /// Returns the status and the message of an engine that refuses all requests.
    fn to_refusal(self) -> Option<(String, String)> {
        let (status, message) = match self {
            Manner::Refuses => ("400 Bad Request", "it is too long".to_owned()),
            Manner::Revoked => ("401 Unauthorized", format!("{KEY} is revoked")),
            Manner::Moved => (
                "307 Temporary Redirect\r\nlocation: /v1/chat/completions?moved",
                "moved".to_owned(),
            ),
            Manner::Busy => ("429 Too Many Requests", "no room".to_owned()),
            Manner::Crashes => ("500 Internal Server Error", "out of memory".to_owned()),
            Manner::Repeats { status } => {
                return Some((format!("{status} Refused"), format!("no access with {KEY}")));
            }
            Manner::Redirects { status, port } => {
                let to = format!("http://127.0.0.1:{port}{CHAT_PATH}");
                return Some((
                    format!("{status} Moved\r\nlocation: {to}"),
                    format!("{KEY} goes to {to}"),
                ));
            }
            _ => return None,
        };
        Some((status.to_owned(), message))
    }

    /// Returns whether the engine has a field.
    fn has_field(self, name: &str) -> bool {
        FIELDS.contains(&name) || self == Manner::Caches && name == CACHE_SALT
    }
}

impl HttpRequest {
    /// Returns what the request has that souk should not send; none if there is nothing.
    fn find_odd_part(&self, manner: Manner) -> Option<String> {
        if let Some(header) = &self.odd_header {
            return Some(format!("the header {header}"));
        }
        if self.first_line == MODELS_LINE {
            return None;
        }
        if self.first_line != CHAT_LINE {
            return Some(format!("the path of {}", self.first_line));
        }
        let Some(fields) = self.body.as_object() else {
            return Some("a body that is no object".to_owned());
        };
        let odd = fields.keys().find(|name| !manner.has_field(name));
        if let Some(name) = odd {
            return Some(format!("the field {name}"));
        }
        let messages = self.body["messages"].as_array();
        let is_plain = |message: &Value| {
            let count = message.as_object().map_or(0, serde_json::Map::len);
            count == 2 && message["role"].is_string() && message["content"].is_string()
        };
        let is_text = messages.is_some_and(|messages| messages.iter().all(is_plain));
        (!is_text).then(|| "messages that are not text".to_owned())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_request(reader: &mut impl BufRead) -> Result<HttpRequest> {
    let mut first_line = String::new();
    reader.read_line(&mut first_line)?;
    let (mut length, mut has_key, mut odd_header) = (0, false, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "content-length" => length = value.parse().unwrap_or(0),
            "authorization" => has_key = value == format!("Bearer {KEY}"),
            "content-type" if value != "application/json" => {
                odd_header = Some(format!("{name}: {value}"));
            }
            name if HEADERS.contains(&name) => {}
            _ => odd_header = Some(name),
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(HttpRequest {
        first_line: first_line.trim_end().to_owned(),
        has_key,
        odd_header,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

fn answer(stream: &mut impl Write, status: &str, body: &str) -> Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close");
    write!(stream, "{head}\r\n\r\n{body}")?;
    stream.flush()
}

fn answer_error(stream: &mut impl Write, status: &str, message: &str) -> Result<()> {
    let error = json!({ "error": { "message": message } }).to_string();
    answer(stream, status, &error)
}

/// Waits until the client closes the connection.
fn wait_for_close(stream: &mut impl Read) -> Result<()> {
    while stream.read(&mut [0; 64])? > 0 {}
    Ok(())
}

/// Returns the pieces of the answer to a request, or of the rest of it.
fn answer_pieces(manner: Manner, body: &Value) -> Vec<String> {
    let is_rest = body["continue_final_message"] == json!(true) && manner != Manner::Anew;
    let last = body["messages"].as_array().and_then(|it| it.last());
    let begun = last.and_then(|message| message["content"].as_str());
    match begun.filter(|_| is_rest) {
        Some(begun) => {
            let text = PIECES.concat();
            vec![text.strip_prefix(begun).expect("its own text").to_owned()]
        }
        None if manner == Manner::Empty => Vec::new(),
        None if manner == Manner::Pads => vec!["x".repeat(PADDING_BYTES); PADDING_PIECES],
        None => PIECES.map(str::to_owned).into(),
    }
}

fn stream_answer(stream: &mut (impl Read + Write), manner: Manner, body: &Value) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    stream.flush()?;
    match manner {
        Manner::Fails => return report_error(stream),
        Manner::SilentBeforeText => return wait_for_close(stream),
        _ => {}
    }
    for (number, piece) in answer_pieces(manner, body).iter().enumerate() {
        if number == PIECES_BEFORE_FAULT && play_fault(stream, manner)? {
            return Ok(());
        }
        if manner == Manner::Slow {
            std::thread::sleep(SLOW);
        }
        let chunk = json!({ "choices": [{ "delta": { "content": piece } }] });
        send_event(stream, manner, chunk)?;
    }
    let end = json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] });
    send_event(stream, manner, end)?;
    if manner == Manner::WrongUsage {
        send_event(stream, manner, json!({ "choices": [] }))?;
    }
    stream.write_all(b"data: [DONE]\n\n")?;
    stream.flush()
}

/// Plays the fault of an engine in the middle of an answer. Returns whether there was one.
fn play_fault(stream: &mut (impl Read + Write), manner: Manner) -> Result<bool> {
    match manner {
        Manner::Breaks => {}
        Manner::HalfLine => {
            stream.write_all(b"data: {\"choices\":[{\"delta\":{\"content\":\"st")?
        }
        Manner::BadEvent => stream.write_all(b"data: {\"choices\":[{\"delta\":\n\n")?,
        Manner::FailsLate => report_error(stream)?,
        Manner::Stalls => wait_for_close(stream)?,
        _ => return Ok(false),
    }
    stream.flush()?;
    Ok(true)
}

fn report_error(stream: &mut impl Write) -> Result<()> {
    let error = json!({ "error": { "message": format!("out of memory with {KEY}") } });
    write!(stream, "data: {error}\n\n")?;
    stream.flush()
}

fn send_event(stream: &mut impl Write, manner: Manner, mut event: Value) -> Result<()> {
    if manner == Manner::WrongUsage {
        let usage = ["prompt_tokens", "completion_tokens", "total_tokens"];
        let claimed = usage.map(|name| (name.to_owned(), json!(CLAIMED_TOKENS)));
        event["usage"] = Value::Object(claimed.into_iter().collect());
    }
    let line = format!("data: {event}\n\n");
    let half = match manner {
        Manner::HalfLines => line.len() / 2,
        _ => 0,
    };
    let (first, second) = line.as_bytes().split_at(half);
    for part in [first, second] {
        stream.write_all(part)?;
        stream.flush()?;
    }
    Ok(())
}
