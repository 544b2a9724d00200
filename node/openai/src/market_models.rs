//! Serves all models that a market's endpoints (providers that sell text by the token) offer, at
//! one address: lists them with their prices, and answers a conversation with an offer of the model
//! that the request names, a cheap one more likely than a dear one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path as Named, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::stream::{self, Stream, StreamExt};
use serde_json::{Value, json};
use souk_gateway::JSON_BYTES_MAX;
use souk_node::buyer::tab::FinishedText;
use souk_node::buyer::text_keys::{CoverError, KeyedRequest, TextKeys};
use souk_node::buyer::text_router::{
    AnswerEvent, AnswerEvents, AnswerFault, AskTerms, SLOT_WAIT, TextOffer, TextRouter,
    TextRouterError,
};
use souk_node::client::broker::BrokerError;
use souk_roles::tokens::card::is_resold;
use souk_roles::tokens::counting::{TokenPrice, TokenRates};
use souk_roles::tokens::tab::TabFailure;
use souk_roles::tokens::text::{AnswerText, Finish, Message, Role, TextRequest};

use crate::answer::{AnswerFields, AnswerKind, DONE};
use crate::api_request::{ApiRequest, Input, REASONING_EFFORT};
use crate::key_access::{Caller, format_account, format_spending};
use crate::refusal::Refusal;
use crate::routing_fields::RoutingFields;
use crate::{AccessPolicy, JsonBody, check_request, unknown_path, wrong_method};

/// The most tokens of an answer if the request does not say.
const TOKENS_DEFAULT: u32 = 2_048;

/// The header that names the provider of an answer by its account.
const PROVIDER_HEADER: HeaderName = HeaderName::from_static("x-souk-provider");

/// What follows a model's name in the path of its offers.
const ENDPOINTS: &str = "/endpoints";

/// The models, and the keys that can use them.
struct MarketModels {
    texts: TextRouter,
    keys: Option<TextKeys>,
}

type ModelsState = State<Arc<MarketModels>>;

/// Returns the paths of a server for all models of a market, behind the checks of `access`.
pub fn market_router(texts: TextRouter, access: AccessPolicy) -> Router {
    let models = MarketModels {
        texts,
        keys: access.keys.clone(),
    };
    let check = middleware::from_fn_with_state(Arc::new(access), check_request);
    Router::new()
        .route("/v1/key", get(show_key))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*model}", get(show_model))
        .route("/v1/chat/completions", post(answer_chat))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(JSON_BYTES_MAX))
        .with_state(Arc::new(models))
        .layer(check)
}

/// Shows what the key of the request has spent.
async fn show_key(State(models): ModelsState, Extension(caller): Extension<Caller>) -> Json<Value> {
    let keys = models.keys.as_ref();
    let account = match &caller {
        Caller::Owner => None,
        Caller::Key(terms) => keys.and_then(|keys| keys.find_account(terms.id())),
    };
    Json(match account {
        Some((terms, account)) => format_account(&terms, &account),
        None => format_spending(models.texts.spending()),
    })
}

async fn list_models(
    State(models): ModelsState,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Refusal> {
    let mut offers = models.texts.fetch_offers().await?;
    offers.retain(|offer| caller.allows_model(offer.card.model.as_str()));
    let models = offers.chunk_by(|one, other| one.card == other.card);
    let data: Vec<Value> = models.map(to_model).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

async fn show_model(
    State(models): ModelsState,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<Json<Value>, Refusal> {
    let (model, has_endpoints) = match name.strip_suffix(ENDPOINTS) {
        Some(model) => (model, true),
        None => (name.as_str(), false),
    };
    caller.check_model(model)?;
    let texts = &models.texts;
    let offers = texts.fetch_offers().await?;
    let named = |offer: &&TextOffer| offer.card.model.as_str() == model;
    let offers: Vec<TextOffer> = offers.iter().filter(named).cloned().collect();
    match (&offers[..], has_endpoints) {
        ([], _) if texts.was_sold_lately(model).await? => {
            let model = model.to_owned();
            Err(TextRouterError::SoldOut { model }.into())
        }
        ([], _) => Err(unsold_model(&format!("no provider sells {model} now"))),
        (offers, false) => Ok(Json(to_model(offers))),
        (offers, true) => {
            let endpoints: Vec<Value> = offers.iter().map(to_endpoint).collect();
            Ok(Json(
                json!({ "data": { "id": model, "endpoints": endpoints } }),
            ))
        }
    }
}

/// Formats the offers of one model, the cheapest first, as a model with that offer's price.
fn to_model(offers: &[TextOffer]) -> Value {
    let cheapest = &offers[0];
    json!({
        "id": cheapest.card.model.as_str(), "object": "model", "created": 0, "owned_by": "souk",
        "pricing": to_pricing(cheapest), "offers": offers.len(),
    })
}

fn to_endpoint(offer: &TextOffer) -> Value {
    let listing = &offer.listing;
    json!({
        "name": listing.name.as_str(), "provider_name": listing.name.as_str(),
        "provider": listing.provider.to_string(), "model_id": offer.card.model.as_str(),
        "pricing": to_pricing(offer), "free_slots": listing.quantity.0,
        "reputation": listing.reputation.0, "resold": is_resold(&listing.resources),
    })
}

/// Formats prices as OpenRouter does: credits for each token, as text.
fn to_pricing(offer: &TextOffer) -> Value {
    let price = TokenPrice::from(TokenRates::from(&offer.listing));
    json!({
        "prompt": format_each(price.input_per_million),
        "input_cache_read": format_each(price.cached_per_million),
        "completion": format_each(price.output_per_million),
    })
}

/// Formats the price of one token, in credits, from micro-credits a million.
fn format_each(micro_per_million: u64) -> String {
    let text = format!("0.{micro_per_million:012}");
    match micro_per_million < 1_000_000_000_000 {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => format!("{}", micro_per_million as f64 / 1e12),
    }
}

async fn answer_chat(
    State(models): ModelsState,
    Extension(caller): Extension<Caller>,
    body: JsonBody,
) -> Result<Response, Refusal> {
    let mut body = body?.0;
    let routing = RoutingFields::take_from(&mut body)?;
    let api = ApiRequest::from_chat(body)?;
    let request = to_text_request(&api)?;
    for model in &routing.models {
        caller.check_model(model)?;
    }
    let key = match (&caller, &models.keys) {
        (Caller::Key(terms), Some(keys)) => Some(Arc::new(keys.admit(terms.id(), &request)?)),
        _ => None,
    };
    let (model, events) = ask_models(&models.texts, &routing, &request, key).await?;
    let provider = events.provider().to_string();
    let fields = AnswerFields::new(AnswerKind::Chat, &model);
    let mut response = match api.is_streamed {
        true => stream_answer(fields, events, api.has_usage).into_response(),
        false => collect_answer(&fields, events).await?.into_response(),
    };
    if let Ok(value) = HeaderValue::from_str(&provider) {
        response.headers_mut().insert(PROVIDER_HEADER, value);
    }
    Ok(response)
}

/// Asks one model after the other, and returns the first that answers.
async fn ask_models(
    texts: &TextRouter,
    routing: &RoutingFields,
    request: &TextRequest,
    key: Option<Arc<KeyedRequest>>,
) -> Result<(String, AnswerEvents), Refusal> {
    let mut refusals = Vec::new();
    for (at, model) in routing.models.iter().enumerate() {
        // Another model is better than a wait.
        let patience = match at + 1 == routing.models.len() {
            true => SLOT_WAIT,
            false => Duration::ZERO,
        };
        let terms = AskTerms {
            rules: routing.rules.clone(),
            patience,
            key: key.clone(),
        };
        let refusal = match texts.ask(model, request, terms).await {
            Ok(events) => match events.ended_without_text().filter(|done| !is_whole(done)) {
                Some(done) => to_fault(done),
                None => return Ok((model.clone(), events)),
            },
            Err(error @ TextRouterError::Broker(_)) => return Err(error.into()),
            // No other model helps a full disk.
            Err(TextRouterError::Key(error @ CoverError::NotWritten(_))) => {
                return Err(error.into());
            }
            Err(error) => error.into(),
        };
        refusals.push((model.clone(), refusal));
    }
    let none = || Refusal::invalid_field("model", "there is no model");
    Err(Refusal::join(refusals).unwrap_or_else(none))
}

fn is_whole(done: &FinishedText) -> bool {
    finish_reason(done.answer.finish).is_some()
}

/// Converts a request of OpenAI's API into one that a tab can have. It refuses every field that
/// would change the answer and that engines do not get.
fn to_text_request(api: &ApiRequest) -> Result<TextRequest, Refusal> {
    let unsupported = [
        ("tools", api.tools.is_some()),
        ("response_format", api.form.is_some()),
        ("documents", !api.documents.is_empty()),
        (
            REASONING_EFFORT,
            api.template_values.contains_key(REASONING_EFFORT),
        ),
        ("chat_template_kwargs", !api.template_values.is_empty()),
        ("logprobs", api.top_logprobs.is_some()),
        ("n", api.choices != 1),
        ("min_p", api.sampling.min_p != 0.0),
        ("top_k", api.sampling.top_k != 0),
        ("repetition_penalty", api.sampling.repetition != 1.0),
        ("logit_bias", !api.sampling.bias.is_empty()),
    ];
    if let Some((name, _)) = unsupported.iter().find(|(_, is_given)| *is_given) {
        return Err(Refusal::unsupported_field(name));
    }
    let messages = match &api.inputs[..] {
        [Input::Messages(messages)] => messages
            .iter()
            .enumerate()
            .map(|(at, message)| to_message(at, message))
            .collect::<Result<_, _>>()?,
        _ => return Err(Refusal::invalid_field("messages", "there is no message")),
    };
    let tokens = api
        .tokens_max
        .map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    let sampling = &api.sampling;
    let unless_zero = |value: f64| (value != 0.0).then_some(value);
    let request = TextRequest {
        messages,
        tokens_max: tokens.unwrap_or(TOKENS_DEFAULT),
        temperature: api.given.temperature,
        top_p: api.given.top_p,
        frequency_penalty: unless_zero(sampling.frequency),
        presence_penalty: unless_zero(sampling.presence),
        // Any engine takes a new seed of 31 bits.
        seed: Some(
            api.given
                .seed
                .unwrap_or((sampling.seed >> 33).cast_signed()),
        ),
        stop: api.stops.clone(),
        continues: false,
    };
    let checked = request.check_limits();
    checked.map_err(|fault| Refusal::invalid_field(fault.field(), fault.to_string()))?;
    Ok(request)
}

/// Converts the message at this index of a conversation.
fn to_message(at: usize, message: &souk_llm::chat::Message) -> Result<Message, Refusal> {
    let unsupported = |field: &str| Refusal::unsupported_field(&format!("messages[{at}].{field}"));
    if message.name.is_some() {
        return Err(unsupported("name"));
    }
    let role = match message.role.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" if message.calls.is_empty() => Role::Assistant,
        "assistant" => return Err(unsupported("tool_calls")),
        _ => return Err(unsupported("role")),
    };
    Ok(Message {
        role,
        content: message.content.clone(),
    })
}

/// Returns the word for the end of an answer; none for one that is not whole.
fn finish_reason(finish: Finish) -> Option<&'static str> {
    match finish {
        Finish::Stop => Some("stop"),
        Finish::Length => Some("length"),
        Finish::ContentFilter => Some("content_filter"),
        Finish::Cancelled
        | Finish::Interrupted
        | Finish::Refused
        | Finish::Busy
        | Finish::Expired => None,
    }
}

fn to_usage(done: &FinishedText) -> Value {
    json!({
        "prompt_tokens": done.count.prompt(), "completion_tokens": done.count.output,
        "prompt_tokens_details": { "cached_tokens": done.count.cached },
        "total_tokens": done.count.total(),
        "cost": done.cost.0 as f64 / 1e6,
    })
}

async fn collect_answer(
    fields: &AnswerFields,
    events: AnswerEvents,
) -> Result<Json<Value>, Refusal> {
    let done = events.collect().await?;
    let reason = finish_reason(done.answer.finish).ok_or_else(|| to_fault(&done))?;
    let AnswerText { reasoning, content } = &done.answer.text;
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    let choice = json!({
        "index": 0, "message": message, "finish_reason": reason, "logprobs": null,
    });
    Ok(Json(fields.format_chat(json!([choice]), to_usage(&done))))
}

fn stream_answer(
    fields: AnswerFields,
    events: AnswerEvents,
    has_usage: bool,
) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>>> {
    let part = |fields: &AnswerFields, delta: Value, reason: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": reason });
        fields.format_part(json!([choice]))
    };
    let first = part(&fields, json!({ "role": "assistant", "content": "" }), None);
    let rest = stream::unfold(Some(events), |events| async {
        let mut events = events?;
        let event = events.next().await;
        let is_last = !matches!(event, Ok(AnswerEvent::Piece(_)));
        Some((event, (!is_last).then_some(events)))
    });
    let rest = rest.flat_map(move |event| {
        let parts = match event {
            Ok(AnswerEvent::Piece(AnswerText { reasoning, content })) => {
                let mut delta = json!({ "content": content });
                if !reasoning.is_empty() {
                    delta["reasoning_content"] = json!(reasoning);
                }
                vec![part(&fields, delta, None)]
            }
            // A client can do nothing with the rest.
            Err(error) => vec![Refusal::from(error).to_object().to_string()],
            Ok(AnswerEvent::Done(done)) => match finish_reason(done.answer.finish) {
                None => vec![to_fault(&done).to_object().to_string()],
                Some(reason) => {
                    let mut parts = vec![part(&fields, json!({}), Some(reason))];
                    if has_usage {
                        parts.push(fields.format_usage(to_usage(&done)));
                    }
                    parts.push(DONE.to_owned());
                    parts
                }
            },
        };
        stream::iter(parts)
    });
    let parts = stream::iter([first]).chain(rest);
    let parts = parts.map(|part| Ok(sse::Event::default().data(part)));
    Sse::new(parts).keep_alive(KeepAlive::default())
}

fn unsold_model(message: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, message).with_code("model_not_found")
}

/// Returns the refusal for an answer that is not whole.
fn to_fault(done: &FinishedText) -> Refusal {
    let message = &done.answer.message;
    match done.answer.finish {
        Finish::Refused => {
            Refusal::new(StatusCode::BAD_REQUEST, message).with_code("engine_refused")
        }
        _ => {
            let message = format!("{message}; you pay for the text that came");
            Refusal::new(StatusCode::BAD_GATEWAY, message).with_code("provider_failed")
        }
    }
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        TextRouterError::from(error).into()
    }
}

impl From<TextRouterError> for Refusal {
    fn from(error: TextRouterError) -> Self {
        let message = error.to_string();
        match error {
            TextRouterError::Broker(_) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .with_code("market_unavailable"),
            TextRouterError::Key(error) => error.into(),
            TextRouterError::NoOffer { .. } => unsold_model(&message),
            TextRouterError::SoldOut { .. } => {
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("no_free_slot")
            }
            TextRouterError::Unsuitable { .. } => {
                let hint = "relax the rules in provider";
                Refusal::invalid_field("provider", format!("{message}; {hint}"))
                    .with_code("no_suitable_offer")
            }
            TextRouterError::Budget { .. } | TextRouterError::ServerBudget { .. }
                if error.is_budget_held() =>
            {
                let hint = "send the request again when open tabs are settled";
                Refusal::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("{message}; {hint}"),
                )
                .with_code("no_free_slot")
            }
            TextRouterError::ServerBudget { .. } => {
                let hint = "its operator can start it with a larger one";
                Refusal::new(StatusCode::PAYMENT_REQUIRED, format!("{message}; {hint}"))
                    .with_code("insufficient_quota")
            }
            TextRouterError::Budget { .. } => {
                let hint = "start the server with a larger --budget";
                Refusal::new(StatusCode::PAYMENT_REQUIRED, format!("{message}; {hint}"))
                    .with_code("insufficient_quota")
            }
            TextRouterError::Memory(_)
            | TextRouterError::Failed {
                last: AnswerFault::Tab(TabFailure::Memory(_)),
            } => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("memory_full"),
            TextRouterError::Broken { .. } => {
                let message = format!("{message}; you pay for the text that came");
                Refusal::new(StatusCode::BAD_GATEWAY, message).with_code("provider_failed")
            }
            TextRouterError::Failed { last } if last.is_momentary() => {
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("no_free_slot")
            }
            TextRouterError::Failed { .. } => {
                Refusal::new(StatusCode::BAD_GATEWAY, message).with_code("provider_failed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn read(body: Value) -> Result<TextRequest, Value> {
        let Value::Object(body) = body else {
            panic!("a body is an object");
        };
        let read = |body: Map<String, Value>| to_text_request(&ApiRequest::from_chat(body)?);
        read(body).map_err(|refusal| refusal.to_object()["error"].clone())
    }

    #[test]
    fn a_budget_that_open_tabs_hold_is_refused_for_a_moment_only() {
        let status = |spent| {
            let error = TextRouterError::Budget {
                budget: 100,
                spent,
                held: 70,
                needed: 40,
            };
            Refusal::from(error).into_response().status()
        };
        assert_eq!(status(60), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(61), StatusCode::PAYMENT_REQUIRED);
    }

    #[test]
    fn a_conversation_becomes_a_request_of_listed_fields() {
        let request = read(json!({
            "model": "m", "max_tokens": 9, "temperature": 0, "stop": "x", "user": "me",
            "messages": [
                { "role": "developer", "content": "be short" },
                { "role": "user", "content": [{ "type": "text", "text": "hi" }] },
            ],
        }));
        let request = request.unwrap();
        let said = request.messages.iter();
        let said: Vec<_> = said.map(|it| (it.role, it.content.as_str())).collect();
        assert_eq!(said, [(Role::System, "be short"), (Role::User, "hi")]);
        assert_eq!((request.tokens_max, request.temperature), (9, Some(0.0)));
        // The engine has its own defaults.
        assert_eq!(request.top_p, None);
        let seed = request.seed.expect("each request has one");
        assert!((0..=i64::from(i32::MAX)).contains(&seed));
    }

    #[test]
    fn a_request_beyond_a_limit_is_refused_by_the_name_of_its_field() {
        let messages = json!([{ "role": "user", "content": "hi" }]);
        let with = |field: &str, value: Value| {
            let mut body = json!({ "model": "m", "messages": messages });
            body[field] = value;
            read(body)
        };
        assert_eq!(with("seed", json!(5)).unwrap().seed, Some(5));
        let refused = |field, value| with(field, value).unwrap_err()["param"].clone();
        assert_eq!(refused("seed", json!(-1)), "seed");
        assert_eq!(refused("max_tokens", json!(1_000_000)), "max_tokens");
        assert_eq!(refused("stop", json!([""])), "stop");
        let long = json!([{ "role": "user", "content": "x".repeat(300_000) }]);
        assert_eq!(refused("messages", long), "messages");
    }

    #[test]
    fn what_engines_do_not_get_is_refused_by_name() {
        let messages = json!([{ "role": "user", "content": "hi" }]);
        let refused = |field: &str, value: Value| {
            let mut body = json!({ "model": "m", "messages": messages });
            body[field] = value;
            read(body).unwrap_err()["param"].clone()
        };
        assert_eq!(refused("top_k", json!(4)), "top_k");
        assert_eq!(refused("n", json!(2)), "n");
        assert_eq!(refused("logprobs", json!(true)), "logprobs");
        assert_eq!(refused("logit_bias", json!({ "4": 1 })), "logit_bias");
        let format = json!({ "type": "json_object" });
        assert_eq!(refused("response_format", format), "response_format");
        let effort = refused("reasoning_effort", json!("low"));
        assert_eq!(effort, "reasoning_effort");
        let named = json!([{ "role": "user", "content": "hi", "name": "kim" }]);
        assert_eq!(refused("messages", named), "messages[0].name");
        let answer = json!([{ "role": "tool", "content": "4", "tool_call_id": "a" }]);
        assert_eq!(refused("messages", answer), "messages[0].role");
    }

    #[test]
    fn a_price_of_a_token_is_exact() {
        assert_eq!(format_each(200_000), "0.0000002");
        assert_eq!(format_each(50_000), "0.00000005");
        assert_eq!(format_each(1), "0.000000000001");
        assert_eq!(format_each(0), "0");
    }
}
