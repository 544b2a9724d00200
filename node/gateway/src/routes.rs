//! Builds the gateway's router and its OpenAPI document from one list of all paths, with their
//! parameters and answers.

mod contents;
mod devices;
mod earnings;
mod events;
mod job_graph;
mod jobs;
mod leases;
pub mod market;
mod network;
mod orders;
mod outputs;
pub mod parties;
mod plans;
mod receipts;
mod sessions;
mod status;
mod trainings;

use std::time::Instant;

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::Value;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;

use crate::document::complete_document;
use crate::extract::JSON_BYTES_MAX;
use crate::headers::finish_response;
use crate::page::link_next_page;
use crate::problem::{Code, Problem};
use crate::state::SharedState;
use crate::web;

/// Path of the OpenAPI document.
pub const DOCUMENT: &str = "/v1/openapi.json";

fn api_router() -> OpenApiRouter<SharedState> {
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = ComponentsBuilder::new()
        .security_scheme("token", scheme)
        .schema_from::<Problem>()
        .schema_from::<Code>()
        .build();
    let about = "A market for computing time, over HTTP. Amounts are whole micro-credits, times \
                 RFC 3339, lengths of time seconds. Refusals are problems of RFC 9457.";
    let info = InfoBuilder::new()
        .title("souk")
        .version("1")
        .description(Some(about))
        .build();
    let document = OpenApiBuilder::new()
        .info(info)
        .components(Some(components))
        .build();
    OpenApiRouter::with_openapi(document)
        .merge(status::router())
        .merge(market::router())
        .merge(parties::router())
        .merge(earnings::router())
        .merge(network::router())
        .merge(devices::router())
        .merge(orders::router())
        .merge(leases::router())
        .merge(receipts::router())
        .merge(contents::router())
        .merge(plans::router())
        .merge(jobs::router())
        .merge(job_graph::router())
        .merge(trainings::router())
        .merge(outputs::router())
        .merge(sessions::router())
        .merge(events::router())
}

/// Returns the OpenAPI 3.1 document of the API.
#[must_use]
pub fn api_document() -> Value {
    complete_document(&api_router().into_openapi())
}

/// Returns the router of all paths, behind the access check.
pub fn router(state: SharedState) -> Router {
    let (router, document) = api_router().split_for_parts();
    let document = complete_document(&document);
    let told = move || std::future::ready(Json(document.clone()));
    router
        .route(DOCUMENT, axum::routing::get(told))
        .merge(web::router())
        .merge(sessions::session_paths())
        .fallback(|| std::future::ready(unknown_path()))
        .with_state(state.clone())
        .layer(DefaultBodyLimit::max(JSON_BYTES_MAX))
        .layer(middleware::from_fn(link_next_page))
        .layer(middleware::from_fn_with_state(state, guard_request))
        .layer(middleware::map_response(finish_response))
}

fn unknown_path() -> Problem {
    Problem::not_found("there is no such path", "/v1/openapi.json lists them")
}

/// Answers a request only if the access check allows it, and counts the answer.
async fn guard_request(State(state): State<SharedState>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let (mut parts, body) = request.into_parts();
    let path = parts.extensions.get::<MatchedPath>().cloned();
    let method = parts.method.clone();
    let answer = match state.access.check_request(&parts, began) {
        Ok(scope) => {
            if let Some(scope) = scope {
                parts.extensions.insert(scope);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    };
    if let Some(path) = path {
        let took = began.elapsed();
        let path = match path.as_str() {
            file if web::has_file(file) => web::COUNTED,
            path => path,
        };
        state
            .figures
            .observe_answer(path, &method, answer.status(), took);
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use axum::http::Method;
    use serde_json::Value;

    use super::*;
    use crate::access::{Scope, required_scope};

    /// The document as it is in git.
    fn kept() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
    }

    #[test]
    fn the_document_in_git_is_what_is_served() {
        let served = serde_json::to_string_pretty(&api_document()).unwrap() + "\n";
        if std::env::var_os("SOUK_API_BLESS").is_some() {
            std::fs::write(kept(), &served).unwrap();
        }
        let found = std::fs::read_to_string(kept()).unwrap_or_default();
        assert!(
            found == served,
            "docs/openapi.json is not what is served: look at the change, then run this test with \
             SOUK_API_BLESS=1"
        );
    }

    /// The names that a part of the document refers to.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                let name = fields.get("$ref").and_then(Value::as_str);
                found.extend(name.map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_says_what_each_name_in_it_means() {
        let document = api_document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 50, "{}", found.len());
        for name in found {
            let place = name.trim_start_matches('#');
            assert!(document.pointer(place).is_some(), "{name} is nowhere");
        }
    }

    #[test]
    fn the_document_says_of_each_path_what_it_takes() {
        let document = api_document();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, about) in methods.as_object().unwrap() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let said = about["security"][0]["token"][0].as_str();
                let path = path.replace(['{', '}'], "");
                assert_eq!(
                    required_scope(&method, &path).map(Scope::name),
                    said,
                    "{method} {path}"
                );
                assert!(
                    about["summary"].is_string() || about["description"].is_string(),
                    "{path}"
                );
            }
        }
    }
}
