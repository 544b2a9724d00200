//! An HTTP server with the paths and JSON of OpenAI's API, for one language model that souk runs.
//!
//! A [`ServedModel`] answers requests concurrently over one session of a [`TextEngine`] (leased
//! devices that keep the model's caches). It opens the session with the first request and ends it
//! after an idle period. [`router`] makes a server of it. Another server, [`market_router`], offers
//! all models that the providers of a market sell by the token. No request goes to OpenAI: souk
//! creates the key that a client must send, and it opens only this server.

#![forbid(unsafe_code)]

mod answer;
mod api_request;
mod choice;
mod completions;
mod cors;
mod embeddings;
mod key_access;
mod market_models;
mod refusal;
mod request_queue;
mod routing_fields;
mod sessions;
mod tool_calls;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Path as Named, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use souk_gateway::{Body, JSON_BYTES_MAX, LocalKey, Problem, check_host_and_origin};
use souk_llm::grammar::Grammar;
use souk_node::buyer::text_keys::TextKeys;
use souk_node::market::Receipt;
use souk_texts::{TextEngine, TextModel};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use answer::{AnswerFields, AnswerKind, ChoiceEvents};
use api_request::ApiRequest;
use completions::prepare_completions;
use embeddings::EmbeddingApiRequest;
use refusal::Refusal;
use request_queue::{QueuedRequest, RequestQueue};
use tool_calls::WantedForm;

pub use market_models::market_router;
pub use sessions::Sessions;

/// The key file, relative to the folder of the market.
pub const KEY_FILE: &str = "buyer/openai-key";

/// The most grammars that the server builds at a time, so that the cores stay free for answers.
const GRAMMARS_AT_ONCE: usize = 2;

/// The most requests that wait for their grammar.
const GRAMMARS_WAITING: usize = 8;

/// The longest wait of a request for its turn: a grammar takes at most a tenth of a second to
/// build.
const GRAMMAR_PATIENCE: Duration = Duration::from_secs(2);

/// Learns what a server does, to show it to the user.
pub trait ServerObserver: Send + Sync {
    /// A request was answered; `summary` is one line.
    fn on_answered(&self, summary: &str);

    /// A request failed.
    fn on_request_failed(&self, cause: &str);

    /// The engine ended its session; `receipts` are those that both sides signed.
    fn on_session_ended(&self, receipts: &[Receipt]);
}

/// How a model is served.
#[derive(Clone, Debug)]
pub struct ServingOptions {
    /// Time for which an idle session stays open.
    pub keep_alive: Duration,
    /// Largest number of tokens to draft for a step.
    pub drafts_max: usize,
    /// Whether to embed texts instead of continuing them.
    pub is_embedding: bool,
    /// Other names of the model that a request can give.
    pub aliases: Vec<String>,
}

/// A model that answers requests.
pub struct ServedModel {
    text_model: TextModel,
    queue: RequestQueue,
    is_embedding: bool,
    aliases: Vec<String>,
    /// The permits to build a grammar.
    grammars: Semaphore,
    /// The permits to build a grammar or to wait for that.
    grammars_waiting: Semaphore,
    /// Start of the server in seconds of Unix time; it reports this as the model's creation time.
    begun: u64,
}

/// The rules that decide which requests a server admits: each must carry a key, and a request from
/// a web page must come from one of the allowed origins.
pub struct AccessPolicy {
    /// The server's own key, from [`KEY_FILE`], and not one of OpenAI.
    pub key: LocalKey,
    /// The keys of the organisation, which also do; none for a server of one model.
    pub keys: Option<TextKeys>,
    /// Origins of the web pages that can send requests, such as `http://localhost:3000`.
    pub origins: Vec<String>,
}

type ServedState = State<Arc<ServedModel>>;
type JsonBody = Result<Body<Map<String, Value>>, Problem>;

impl ServedModel {
    /// Serves a model over an engine. Once [`Self::close`] is called and the engine has ended its
    /// session, the task ends.
    pub fn start(
        text_model: TextModel,
        engine: TextEngine,
        options: ServingOptions,
        observer: Arc<dyn ServerObserver>,
    ) -> (Arc<ServedModel>, JoinHandle<()>) {
        let ServingOptions {
            keep_alive,
            drafts_max,
            is_embedding,
            aliases,
        } = options;
        let (queue, worker) = RequestQueue::open(&text_model, keep_alive, drafts_max, observer);
        let working = tokio::task::spawn_blocking(move || worker.run(engine));
        let begun = SystemTime::now().duration_since(UNIX_EPOCH);
        let model = ServedModel {
            text_model,
            queue,
            is_embedding,
            aliases,
            grammars: Semaphore::new(GRAMMARS_AT_ONCE),
            grammars_waiting: Semaphore::new(GRAMMARS_AT_ONCE + GRAMMARS_WAITING),
            begun: begun.map_or(0, |it| it.as_secs()),
        };
        (Arc::new(model), working)
    }

    /// Refuses new requests, and ends the engine's session after the current step.
    pub fn close(&self) {
        self.queue.close();
    }

    fn to_card(&self, name: &str) -> Value {
        json!({ "id": name, "object": "model", "created": self.begun, "owned_by": "souk" })
    }

    fn check_name(&self, name: &str) -> Result<(), Refusal> {
        let own = &self.text_model.card.name;
        match own == name || self.aliases.iter().any(|alias| alias == name) {
            true => Ok(()),
            false => Err(Refusal::unknown_model(name, own)),
        }
    }
}

/// Returns the paths of a server for one model, behind the checks of `access`.
pub fn router(model: Arc<ServedModel>, access: AccessPolicy) -> Router {
    let check = middleware::from_fn_with_state(Arc::new(access), check_request);
    model_paths(model).layer(check)
}

/// Returns the paths of OpenAI's API for one model, without a check of access.
fn model_paths(model: Arc<ServedModel>) -> Router {
    Router::new()
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*model}", get(show_model))
        .route("/v1/chat/completions", post(answer_chat))
        .route("/v1/completions", post(answer_completion))
        .route("/v1/embeddings", post(answer_embeddings))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(JSON_BYTES_MAX))
        .with_state(model)
}

/// Admits requests from programs and from web pages of the allowed origins. Each must name this
/// machine as its host and carry the key.
async fn check_request(
    State(access): State<Arc<AccessPolicy>>,
    asked: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = asked.into_parts();
    let origin = cors::allowed_origin(&access.origins, &parts.headers);
    if let Some(origin) = &origin {
        if parts.method == Method::OPTIONS {
            return cors::preflight_response(origin, &parts.headers);
        }
        cors::remove_origin(&mut parts.headers);
    }
    let answered = match check_host_and_origin(&parts) {
        Err(problem) => Refusal::from(problem).into_response(),
        Ok(()) => match access.find_caller(&parts.headers) {
            None => access.refuse_key(&parts.headers).into_response(),
            Some(caller) => {
                parts.extensions.insert(caller);
                next.run(Request::from_parts(parts, body)).await
            }
        },
    };
    match origin {
        Some(origin) => cors::shown_to(&origin, answered),
        None => answered,
    }
}

async fn list_models(State(model): ServedState) -> Json<Value> {
    let names = std::iter::once(&model.text_model.card.name).chain(&model.aliases);
    let data: Vec<Value> = names.map(|name| model.to_card(name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

async fn show_model(
    State(model): ServedState,
    Named(name): Named<String>,
) -> Result<Json<Value>, Refusal> {
    model.check_name(&name)?;
    Ok(Json(model.to_card(&name)))
}

async fn answer_chat(State(model): ServedState, body: JsonBody) -> Result<Response, Refusal> {
    let request = ApiRequest::from_chat(body?.0)?;
    answer_completions(&model, request, AnswerKind::Chat).await
}

async fn answer_completion(State(model): ServedState, body: JsonBody) -> Result<Response, Refusal> {
    let request = ApiRequest::from_completion(body?.0)?;
    answer_completions(&model, request, AnswerKind::Text).await
}

async fn answer_completions(
    model: &ServedModel,
    request: ApiRequest,
    kind: AnswerKind,
) -> Result<Response, Refusal> {
    if model.is_embedding {
        return Err(Refusal::unsupported_endpoint(
            "this server makes only vectors; start it without --embeddings for texts",
        ));
    }
    model.check_name(&request.model)?;
    let text_model = &model.text_model;
    let mut places = model
        .queue
        .reserve_entries(request.inputs.len() * request.choices)?;
    let calls = request.tools.as_ref();
    let calls = calls
        .map(|wanted| tool_calls::AllowedToolCalls::new(text_model, wanted))
        .transpose()?;
    let grammar = match WantedForm::from_request(&request, calls.as_ref())? {
        Some(wanted) => Some(build_grammar(model, &wanted).await?),
        None => None,
    };
    let prepared = tokio::task::block_in_place(|| {
        prepare_completions(text_model, &request, calls.as_ref(), grammar)
    })?;
    let mut choices = Vec::with_capacity(prepared.len());
    for (completion, choice) in prepared {
        let events = model
            .queue
            .accept_request(&mut places, QueuedRequest::Text(Box::new(completion)))?;
        choices.push(ChoiceEvents { choice, events });
    }
    let shape = AnswerFields::new(kind, &request.model);
    match request.is_streamed {
        true => answer::stream_answer(shape, choices, request.has_usage).await,
        false => answer::collect_answer(shape, choices).await,
    }
}

/// Creates the grammar of a form, in its own queue: its creation must not delay answers.
async fn build_grammar(model: &ServedModel, wanted: &WantedForm) -> Result<Grammar, Refusal> {
    let full = || Refusal::queue_full(GRAMMARS_WAITING);
    let _place = model.grammars_waiting.try_acquire().map_err(|_| full())?;
    let turn = tokio::time::timeout(GRAMMAR_PATIENCE, model.grammars.acquire());
    let _turn = turn.await.map_err(|_| full())?.map_err(|_| full())?;
    let made =
        tokio::task::block_in_place(|| model.text_model.build_grammar(&wanted.form, wanted.mark));
    made.map_err(|error| Refusal::invalid_field(wanted.field, error.to_string()))
}

async fn answer_embeddings(State(model): ServedState, body: JsonBody) -> Result<Response, Refusal> {
    if !model.is_embedding {
        return Err(Refusal::unsupported_endpoint(
            "this server makes only texts; start it with --embeddings for vectors",
        ));
    }
    let request = EmbeddingApiRequest::read(body?.0)?;
    model.check_name(&request.model)?;
    let mut places = model.queue.reserve_entries(1)?;
    let embedding = tokio::task::block_in_place(|| request.to_request(&model.text_model))?;
    let tokens = embedding.texts.iter().map(Vec::len).sum();
    let events = model
        .queue
        .accept_request(&mut places, QueuedRequest::Vectors(embedding))?;
    request.collect_answer(tokens, events).await
}

async fn unknown_path(asked: Request) -> Refusal {
    let message = format!("there is no {} here", asked.uri().path());
    Refusal::new(StatusCode::NOT_FOUND, message).with_code("unknown_url")
}

async fn wrong_method(asked: Request) -> Refusal {
    let message = format!("{} does not take {}", asked.uri().path(), asked.method());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_supported")
}
