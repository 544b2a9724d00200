//! `souk openai`: a language model for programs that speak OpenAI's HTTP.
//!
//! It is a door of its own: its paths, errors and key are OpenAI's, not the gateway's. Several
//! questions are answered at once over one session, which is bought with the first and given up
//! after a while without any.

mod answer;
mod calling;
mod desk;
mod embeddings;
mod question;
mod refusal;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Path as Named, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use souk_gateway::{Body, Door, DoorError, DoorKey, JSON_BYTES_MAX, Problem, from_here};
use souk_testnet::process::READY;

use super::serve::from_tokens;
use super::texts::{self, Place, SessionSize, StopSign, Voice};
use crate::args::{OpenaiArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use crate::stop;
use answer::Shape;
use calling::Calling;
use desk::{Desk, DeskOrder, TextOrder};
use embeddings::EmbeddingQuestion;
use question::{Input, Question};
use refusal::Refusal;

/// Where the key lies, in the folder of the market.
const KEY_FILE: &str = "buyer/openai-key";

/// What every handler knows.
struct Server {
    voice: Voice,
    key: DoorKey,
    desk: Desk,
    /// Whether it makes vectors of texts, and does not go on with them.
    is_embedding: bool,
    /// When it began, in seconds of Unix time: what it says a model was made.
    begun: u64,
}

type ServerState = State<Arc<Server>>;
type JsonBody = Result<Body<Map<String, Value>>, Problem>;

/// Answers over HTTP until it is told to stop.
pub async fn run(folder: &Path, output: Output, args: &OpenaiArgs) -> Outcome {
    let mut requests = stop::Requests::new();
    let (model, voice) = texts::open(&args.model, args.place.context)?;
    let name = voice.card.name.clone();
    let door = Door::at(args.listen).await.map_err(from_door)?;
    let stop = StopSign::new();
    let (market, model) = ((folder, output), (model, voice.room));
    let size = SessionSize {
        tokens: args.session.session,
        sequences: args.sequences,
        is_embedding: args.embeddings,
    };
    let place = Place::open(market, model, &args.place, size, stop.clone()).await?;
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let path = path.join(KEY_FILE);
    crate::folder::create(path.parent().unwrap_or(folder))?;
    let key = DoorKey::load_or_create(&path).map_err(from_tokens)?;
    let keep = Duration::from_secs(args.keep);
    let (desk, work) = Desk::open(
        output,
        &voice,
        args.place.lease.out.clone(),
        (keep, args.place.draft),
    );
    let mut working = tokio::task::spawn_blocking(move || work.run(place));
    let url = format!("http://{}/v1", door.address());
    let facts = json!({ "ready": true, "url": url, "model": name, "key_file": path });
    let text = format!(
        "{READY} {url} with {name}; its key is in {}; stop with Ctrl-C",
        path.display()
    );
    show::line(output, &facts, &text);
    let begun = SystemTime::now().duration_since(UNIX_EPOCH);
    let server = Arc::new(Server {
        voice,
        key,
        desk,
        is_embedding: args.embeddings,
        begun: begun.map_or(0, |it| it.as_secs()),
    });
    tokio::select! {
        () = door.serve(router(server.clone())) => {}
        () = requests.next() => {}
    }
    server.desk.close();
    // What is under way ends with its step; who does not want to wait for that says so again.
    let done = tokio::select! {
        done = &mut working => done,
        () = requests.next() => {
            stop.give();
            working.await
        }
    };
    done.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
}

fn from_door(error: DoorError) -> Failure {
    let (kind, hint) = match error {
        DoorError::NotLoopback { .. } => (
            Kind::Input,
            "give --listen 127.0.0.1:0, and have a proxy with a password answer others",
        ),
        DoorError::Listen { .. } => (
            Kind::Network,
            "another program may listen there: give --listen another port",
        ),
    };
    Failure::new(kind, error, hint)
}

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/embeddings", post(embeddings))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(JSON_BYTES_MAX))
        .layer(middleware::from_fn_with_state(server.clone(), guard))
        .with_state(server)
}

/// Lets in who asks by a name of this machine, from no other origin, with the key.
async fn guard(State(server): ServerState, asked: Request, next: Next) -> Response {
    let (parts, body) = asked.into_parts();
    if let Err(problem) = from_here(&parts) {
        return Refusal::from(problem).into_response();
    }
    if !server.key.is_shown(&parts.headers) {
        return Refusal::key(KEY_FILE).into_response();
    }
    next.run(Request::from_parts(parts, body)).await
}

fn card(server: &Server) -> Value {
    json!({
        "id": server.voice.card.name, "object": "model", "created": server.begun,
        "owned_by": "souk",
    })
}

async fn models(State(server): ServerState) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&server)] }))
}

async fn model(
    State(server): ServerState,
    Named(name): Named<String>,
) -> Result<Json<Value>, Refusal> {
    known(&server, &name)?;
    Ok(Json(card(&server)))
}

fn known(server: &Server, name: &str) -> Result<(), Refusal> {
    match &server.voice.card.name {
        own if own == name => Ok(()),
        own => Err(Refusal::model(name, own)),
    }
}

async fn chat(State(server): ServerState, body: JsonBody) -> Result<Response, Refusal> {
    let question = Question::chat(body?.0)?;
    answered(&server, question, "chat").await
}

async fn completion(State(server): ServerState, body: JsonBody) -> Result<Response, Refusal> {
    let question = Question::completion(body?.0)?;
    answered(&server, question, "text").await
}

async fn answered(
    server: &Server,
    question: Question,
    kind: &'static str,
) -> Result<Response, Refusal> {
    if server.is_embedding {
        return Err(Refusal::endpoint("vectors, and texts without --embeddings"));
    }
    known(server, &question.model)?;
    let (voice, is_weighed) = (&server.voice, question.likeliest.is_some());
    let calls = question
        .tools
        .as_ref()
        .map(|it| Calling::new(voice, it))
        .transpose()?;
    let order = tokio::task::block_in_place(|| order(voice, &question, calls.as_ref()))?;
    let events = server.desk.take(DeskOrder::Text(order))?;
    let calls = calls.map(Calling::reader);
    let shape = Shape::new((kind, &voice.card.name), is_weighed, calls);
    match question.is_streamed {
        true => answer::stream(shape, events, question.has_usage).await,
        false => answer::whole(shape, events).await,
    }
}

/// What is to be written for a question.
fn order(
    voice: &Voice,
    question: &Question,
    calls: Option<&Calling<'_>>,
) -> Result<TextOrder, Refusal> {
    let prompt = match (&question.input, calls) {
        (Input::Messages(messages), Some(calls)) => calls.prompt(messages)?,
        (Input::Messages(messages), None) => voice.conversation(messages)?,
        (Input::Text(text), _) => voice.text(text)?,
        (Input::Tokens(tokens), _) => tokens.clone(),
    };
    if prompt.is_empty() {
        return Err(Refusal::field("prompt", "the prompt is empty"));
    }
    let left = voice.room.saturating_sub(prompt.len());
    if left == 0 {
        return Err(Refusal::too_long("messages", prompt.len(), voice.room));
    }
    let (form, field) = match calls.and_then(Calling::form) {
        Some(form) => (Some(form), "tools"),
        None => (question.form.clone(), "response_format"),
    };
    let grammar = form.map(|form| voice.grammar(&form)).transpose();
    Ok(TextOrder {
        prompt,
        sampling: question.sampling.clone(),
        stops: question.stops.clone(),
        grammar: grammar.map_err(|error| Refusal::field(field, error.to_string()))?,
        tokens_max: question.tokens_max.unwrap_or(left),
        likeliest: question.likeliest,
    })
}

async fn embeddings(State(server): ServerState, body: JsonBody) -> Result<Response, Refusal> {
    if !server.is_embedding {
        return Err(Refusal::endpoint("texts, and vectors with --embeddings"));
    }
    let question = EmbeddingQuestion::read(body?.0)?;
    known(&server, &question.model)?;
    let order = tokio::task::block_in_place(|| question.order(&server.voice))?;
    let tokens = order.texts.iter().map(Vec::len).sum();
    let events = server.desk.take(DeskOrder::Vectors(order))?;
    let model = &server.voice.card.name;
    question.answer(tokens, events, model).await
}

async fn unknown(asked: Request) -> Refusal {
    let message = format!("there is no {} here", asked.uri().path());
    Refusal::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

async fn wrong_method(asked: Request) -> Refusal {
    let message = format!("{} does not take {}", asked.uri().path(), asked.method());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_supported")
}
