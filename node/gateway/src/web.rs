//! Serves the gateway's web page, whose files are part of this program. They must not contain
//! private data, because any process on this machine can fetch them without a token. The page reads
//! its data with the token behind the `#` of its address.

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use axum::routing::get;

use crate::byte_range::Part;
use crate::problem::Problem;

/// Path, content type and bytes of each file.
const FILES: &[(&str, &str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/web.rs"));

/// The label under which the metrics count all files: they are many, and all alike.
pub const COUNTED: &str = "page";

/// BLAKE3 of each file.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let name = |(_, _, bytes): &(&str, &str, &[u8])| blake3::hash(bytes).to_string();
    FILES.iter().map(name).collect()
});

/// Returns whether the page has a file at this path.
pub fn has_file(path: &str) -> bool {
    FILES.iter().any(|(known, ..)| *known == path)
}

/// Returns the router of all files.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let files = FILES.iter().enumerate();
    files.fold(Router::new(), |router, (place, (path, ..))| {
        let answer = move |headers: HeaderMap| std::future::ready(serve_file(place, &headers));
        router.route(path, get(answer))
    })
}

fn serve_file(place: usize, headers: &HeaderMap) -> Result<Response, Problem> {
    let (_, kind, bytes) = FILES[place];
    let part = Part::from_headers(headers, &NAMES[place], kind, bytes.len() as u64)?;
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
    let wanted = &bytes[at(part.range.start)..at(part.range.end)];
    let mut response = part.build_response(Body::from(wanted));
    // Another version of souk has another file at the same path.
    let again = HeaderValue::from_static("no-cache");
    response.headers_mut().insert(CACHE_CONTROL, again);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_what_they_are_called_and_the_first_page_is_at_the_root() {
        assert!(has_file("/"));
        assert!(!has_file("/index.html"));
        for (path, kind, bytes) in FILES {
            assert!(path.starts_with('/') && !bytes.is_empty(), "{path}");
            // What a page's own policy would not load is not served as something else.
            let is_script = kind.starts_with("text/javascript");
            assert_eq!(is_script, path.ends_with(".js"), "{path}");
        }
    }

    #[test]
    fn a_file_that_is_there_already_is_not_sent_again() {
        let first = serve_file(0, &HeaderMap::new()).unwrap();
        let mut headers = HeaderMap::new();
        let etag = first.headers()[axum::http::header::ETAG].clone();
        headers.insert(axum::http::header::IF_NONE_MATCH, etag);
        let again = serve_file(0, &headers).unwrap();
        assert_eq!(
            (first.status().as_u16(), again.status().as_u16()),
            (200, 304)
        );
        let way = &again.headers()[CACHE_CONTROL];
        assert_eq!(way, "no-cache");
    }
}
