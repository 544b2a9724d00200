//! Extracts JSON bodies and query parameters from requests, and refuses unreadable ones with a
//! [`Problem`].

use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use serde::de::DeserializeOwned;

use crate::problem::{Code, Problem};

/// Largest size of a JSON body, in bytes.
pub const JSON_BYTES_MAX: usize = 1 << 20;

/// Longest time for a JSON body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body.
pub struct Body<T>(pub T);

/// The query parameters of a request.
pub struct Parameters<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Problem> {
        let kind = request.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .eq_ignore_ascii_case("application/json")
        {
            return Err(Problem::malformed_input(
                "the body's content type is not application/json",
            ));
        }
        // Refuses a body at once if its declared length is too large.
        if request.body().size_hint().lower() > JSON_BYTES_MAX as u64 {
            return Err(too_large());
        }
        let reading = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, state));
        let Ok(read) = reading.await else {
            return Err(Problem::malformed_input("the body did not come in time"));
        };
        let bytes = read.map_err(|rejected| {
            if rejected.into_response().status() == StatusCode::PAYLOAD_TOO_LARGE {
                return too_large();
            }
            Problem::malformed_input("the body did not arrive completely")
        })?;
        serde_json::from_slice(&bytes)
            .map(Body)
            .map_err(Problem::malformed_input)
    }
}

fn too_large() -> Problem {
    let detail = format!("the body is longer than {JSON_BYTES_MAX} bytes");
    let hint = "upload models and tensors by PUT /v1/contents/{blake3}";
    Problem::new(Code::TooLarge, detail, hint)
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Parameters<T>, Problem> {
        let read: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        let Query(asked) = read.map_err(|refused| Problem::malformed_input(refused.body_text()))?;
        Ok(Parameters(asked))
    }
}
