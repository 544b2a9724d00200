//! Adds the gateway's common headers to every answer, such as the content security policy of its
//! pages. If the router itself refused a method, it replaces the router's empty answer with a
//! [`Problem`].

use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// Content security policy of the gateway's pages: they load nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'none'";

const ALWAYS: [(HeaderName, &str); 3] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
];

/// Adds the common headers to an answer, and a [`Problem`] if the router alone answered.
pub async fn finish_response(response: Response) -> Response {
    let is_bare = response.status() == StatusCode::METHOD_NOT_ALLOWED
        && !response.headers().contains_key(CONTENT_TYPE);
    let mut response = match is_bare {
        true => Problem::of_method(response.headers().get(ALLOW).cloned()).into_response(),
        false => response,
    };
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}
