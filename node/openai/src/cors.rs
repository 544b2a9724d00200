//! Answers the CORS requests of browsers: lets web pages of other origins use the server if the
//! user who started it named these origins.
//!
//! A browser asks for permission before it sends a key. Only the named origins get it.

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// Header in which browsers describe the origin of a request.
const FETCH_SITE: &str = "sec-fetch-site";
/// The name that stands for all origins.
const ALL: &str = "*";
/// Seconds for which a browser can remember the permission.
const AGE: HeaderValue = HeaderValue::from_static("600");

/// Returns the request's origin if the user named it.
pub fn allowed_origin(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers.get(ORIGIN)?;
    let is_named = |origin: &String| origin == ALL || origin.as_bytes() == asks.as_bytes();
    origins.iter().any(is_named).then(|| asks.clone())
}

/// Removes the headers about the request's origin, once they are checked.
pub fn remove_origin(headers: &mut HeaderMap) {
    headers.remove(ORIGIN);
    headers.remove(FETCH_SITE);
}

/// Returns the permission that a browser asks for. The request itself must still carry the key.
pub fn preflight_response(origin: &HeaderValue, headers: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let told = response.headers_mut();
    told.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST"),
    );
    let plain = HeaderValue::from_static("authorization, content-type");
    let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    told.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(plain));
    told.insert(ACCESS_CONTROL_MAX_AGE, AGE);
    shown_to(origin, response)
}

/// Marks a response that pages of an origin may read.
pub fn shown_to(origin: &HeaderValue, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(origin: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))])
    }

    #[test]
    fn pages_of_named_origins_may_ask_and_no_others() {
        let named = ["http://localhost:3000".to_owned()];
        assert!(allowed_origin(&named, &of("http://localhost:3000")).is_some());
        for other in ["http://localhost:3001", "https://localhost:3000", "null"] {
            assert!(allowed_origin(&named, &of(other)).is_none(), "{other}");
        }
        assert!(allowed_origin(&[], &of("http://localhost:3000")).is_none());
        assert!(allowed_origin(&[ALL.to_owned()], &of("https://any.example")).is_some());
        assert!(allowed_origin(&named, &HeaderMap::new()).is_none());
    }

    #[test]
    fn leave_names_the_origin_and_what_it_may_send() {
        let origin = HeaderValue::from_static("http://localhost:3000");
        let response = preflight_response(&origin, &HeaderMap::new());
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(response.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], origin);
        let sent = &response.headers()[ACCESS_CONTROL_ALLOW_HEADERS];
        assert_eq!(sent, "authorization, content-type");
    }
}
