//! `souk openai`: serves a language model to programs that use OpenAI's HTTP API.
//!
//! It has its own listener, because its paths, errors and key are OpenAI's, not the gateway's. It
//! can answer several requests at once over one session, which it buys with the first request and
//! ends after an idle period.

mod answer;
mod choice;
mod completions;
mod cors;
mod embeddings;
mod question;
mod refusal;
mod request_queue;
mod tool_calls;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Path as Named, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use souk_gateway::{
    Body, HttpListener, JSON_BYTES_MAX, ListenerError, LocalKey, Problem, from_here,
};
use souk_llm::grammar::Grammar;
use souk_testnet::process::READY;
use tokio::sync::Semaphore;

use super::serve::from_tokens;
use super::texts::{self, Place, SessionSize, StopSignal, TextModel};
use crate::args::{OpenaiArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use crate::stop;
use answer::{AnswerKind, ChoiceEvents, Shape};
use completions::prepare_completions;
use embeddings::EmbeddingQuestion;
use question::Question;
use refusal::Refusal;
use request_queue::{QueuedRequest, RequestQueue};
use tool_calls::WantedForm;

/// The key file, relative to the folder of the market.
const KEY_FILE: &str = "buyer/openai-key";

/// Schemas that become grammars concurrently, those that can wait, and how long: a grammar takes at
/// most a tenth of a second.
const GRAMMARS_AT_ONCE: usize = 2;
const GRAMMARS_WAITING: usize = 8;
const GRAMMAR_PATIENCE: Duration = Duration::from_secs(2);

/// The state that all handlers share.
struct Server {
    text_model: TextModel,
    key: LocalKey,
    queue: RequestQueue,
    /// Whether the server embeds texts instead of continuing them.
    is_embedding: bool,
    /// Other names of the model.
    aliases: Vec<String>,
    /// Origins of the web pages that may send requests.
    origins: Vec<String>,
    /// Permits for creating grammars, and for creating them or waiting to.
    grammars: Semaphore,
    grammars_waiting: Semaphore,
    /// Start of the server in seconds of Unix time; it reports this as the model's creation time.
    begun: u64,
}

type ServerState = State<Arc<Server>>;
type JsonBody = Result<Body<Map<String, Value>>, Problem>;

/// Answers HTTP requests until a signal stops it.
pub async fn run(folder: &Path, output: Output, args: &OpenaiArgs) -> Outcome {
    let mut requests = stop::Requests::new();
    let (model, text_model) = texts::open_model(&args.model, args.place.context)?;
    let name = text_model.card.name.clone();
    let listener = HttpListener::bind_loopback(args.listen)
        .await
        .map_err(from_listener)?;
    let stop = StopSignal::new();
    let (market, model) = ((folder, output), (model, text_model.context_length));
    let size = SessionSize {
        tokens: args.session.session,
        sequences: args.sequences,
        is_embedding: args.embeddings,
    };
    let place = Place::open_place(
        market.0,
        market.1,
        model.0,
        model.1,
        &args.place,
        size,
        stop.clone(),
    )
    .await?;
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let path = path.join(KEY_FILE);
    crate::folder::create_folder(path.parent().unwrap_or(folder))?;
    let key = LocalKey::load_or_create(&path).map_err(from_tokens)?;
    let keep = Duration::from_secs(args.keep_alive);
    let (queue, work) = RequestQueue::open(
        output,
        &text_model,
        args.place.lease.out.clone(),
        (keep, args.place.draft),
    );
    let mut working = tokio::task::spawn_blocking(move || work.run(place));
    let url = format!("http://{}/v1", listener.address());
    let facts = json!({ "ready": true, "url": url, "model": name, "key_file": path });
    let text = format!(
        "{READY} {url} with {name}; its key is in {}; stop with Ctrl-C",
        path.display()
    );
    show::print_result(output, &facts, &text);
    let begun = SystemTime::now().duration_since(UNIX_EPOCH);
    let server = Arc::new(Server {
        text_model,
        key,
        queue,
        is_embedding: args.embeddings,
        aliases: args.alias.clone(),
        origins: args.cors.clone(),
        grammars: Semaphore::new(GRAMMARS_AT_ONCE),
        grammars_waiting: Semaphore::new(GRAMMARS_AT_ONCE + GRAMMARS_WAITING),
        begun: begun.map_or(0, |it| it.as_secs()),
    });
    tokio::select! {
        () = listener.serve(router(server.clone())) => {}
        () = requests.next() => {}
    }
    server.queue.close();
    // The current step ends first; the user can cut that wait short with a second signal.
    let done = tokio::select! {
        done = &mut working => done,
        () = requests.next() => {
            stop.raise_signal();
            working.await
        }
    };
    done.map_err(|error| Failure::new(Kind::Unexpected, error, ""))
}

fn from_listener(error: ListenerError) -> Failure {
    let (kind, hint) = match error {
        ListenerError::NotLoopback { .. } => (
            Kind::Input,
            "give --listen 127.0.0.1:0, and put a proxy with a password in front of it for others",
        ),
        ListenerError::Listen { .. } => (
            Kind::Network,
            "another program may listen there: give --listen another port",
        ),
    };
    Failure::new(kind, error, hint)
}

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*model}", get(show_model))
        .route("/v1/chat/completions", post(answer_chat))
        .route("/v1/completions", post(answer_completion))
        .route("/v1/embeddings", post(answer_embeddings))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(JSON_BYTES_MAX))
        .layer(middleware::from_fn_with_state(
            server.clone(),
            check_request,
        ))
        .with_state(server)
}

/// Admits requests from programs and from web pages of the allowed origins. Each must name this
/// machine as its host and carry the key.
async fn check_request(State(server): ServerState, asked: Request, next: Next) -> Response {
    let (mut parts, body) = asked.into_parts();
    let origin = cors::allowed_origin(&server.origins, &parts.headers);
    if let Some(origin) = &origin {
        if parts.method == Method::OPTIONS {
            return cors::preflight_response(origin, &parts.headers);
        }
        cors::remove_origin(&mut parts.headers);
    }
    let answered = match from_here(&parts) {
        Err(problem) => Refusal::from(problem).into_response(),
        Ok(()) if !server.key.is_shown(&parts.headers) => Refusal::key(KEY_FILE).into_response(),
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
    };
    match origin {
        Some(origin) => cors::shown_to(&origin, answered),
        None => answered,
    }
}

fn model_card(server: &Server, name: &str) -> Value {
    json!({ "id": name, "object": "model", "created": server.begun, "owned_by": "souk" })
}

async fn list_models(State(server): ServerState) -> Json<Value> {
    let names = std::iter::once(&server.text_model.card.name).chain(&server.aliases);
    let data: Vec<Value> = names.map(|name| model_card(&server, name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

async fn show_model(
    State(server): ServerState,
    Named(name): Named<String>,
) -> Result<Json<Value>, Refusal> {
    check_model(&server, &name)?;
    Ok(Json(model_card(&server, &name)))
}

fn check_model(server: &Server, name: &str) -> Result<(), Refusal> {
    let own = &server.text_model.card.name;
    match own == name || server.aliases.iter().any(|alias| alias == name) {
        true => Ok(()),
        false => Err(Refusal::unknown_model(name, own)),
    }
}

async fn answer_chat(State(server): ServerState, body: JsonBody) -> Result<Response, Refusal> {
    let question = Question::from_chat(body?.0)?;
    answer_question(&server, question, AnswerKind::Chat).await
}

async fn answer_completion(
    State(server): ServerState,
    body: JsonBody,
) -> Result<Response, Refusal> {
    let question = Question::from_completion(body?.0)?;
    answer_question(&server, question, AnswerKind::Text).await
}

async fn answer_question(
    server: &Server,
    question: Question,
    kind: AnswerKind,
) -> Result<Response, Refusal> {
    if server.is_embedding {
        return Err(Refusal::unsupported_endpoint(
            "vectors, and texts without --embeddings",
        ));
    }
    check_model(server, &question.model)?;
    let text_model = &server.text_model;
    let mut places = server
        .queue
        .reserve_entries(question.inputs.len() * question.choices)?;
    let calls = question.tools.as_ref();
    let calls = calls
        .map(|wanted| tool_calls::Calling::new(text_model, wanted))
        .transpose()?;
    let grammar = match WantedForm::from_question(&question, calls.as_ref())? {
        Some(wanted) => Some(build_grammar(server, &wanted).await?),
        None => None,
    };
    let prepared = tokio::task::block_in_place(|| {
        prepare_completions(text_model, &question, calls.as_ref(), grammar)
    })?;
    let mut choices = Vec::with_capacity(prepared.len());
    for (order, choice) in prepared {
        let events = server
            .queue
            .accept_request(&mut places, QueuedRequest::Text(Box::new(order)))?;
        choices.push(ChoiceEvents { choice, events });
    }
    let shape = Shape::new(kind, &question.model);
    match question.is_streamed {
        true => answer::stream_answer(shape, choices, question.has_usage).await,
        false => answer::collect_answer(shape, choices).await,
    }
}

/// Creates the grammar of a form, in its own queue: its creation must not delay answers.
async fn build_grammar(server: &Server, wanted: &WantedForm) -> Result<Grammar, Refusal> {
    let full = || Refusal::queue_full(GRAMMARS_WAITING);
    let _place = server.grammars_waiting.try_acquire().map_err(|_| full())?;
    let turn = tokio::time::timeout(GRAMMAR_PATIENCE, server.grammars.acquire());
    let _turn = turn.await.map_err(|_| full())?.map_err(|_| full())?;
    let made =
        tokio::task::block_in_place(|| server.text_model.build_grammar(&wanted.form, wanted.mark));
    made.map_err(|error| Refusal::invalid_field(wanted.field, error.to_string()))
}

async fn answer_embeddings(
    State(server): ServerState,
    body: JsonBody,
) -> Result<Response, Refusal> {
    if !server.is_embedding {
        return Err(Refusal::unsupported_endpoint(
            "texts, and vectors with --embeddings",
        ));
    }
    let question = EmbeddingQuestion::read(body?.0)?;
    check_model(&server, &question.model)?;
    let mut places = server.queue.reserve_entries(1)?;
    let order = tokio::task::block_in_place(|| question.to_request(&server.text_model))?;
    let tokens = order.texts.iter().map(Vec::len).sum();
    let events = server
        .queue
        .accept_request(&mut places, QueuedRequest::Vectors(order))?;
    question.collect_answer(tokens, events).await
}

async fn unknown_path(asked: Request) -> Refusal {
    let message = format!("there is no {} here", asked.uri().path());
    Refusal::new(StatusCode::NOT_FOUND, message).with_code("unknown_url")
}

async fn wrong_method(asked: Request) -> Refusal {
    let message = format!("{} does not take {}", asked.uri().path(), asked.method());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_supported")
}
