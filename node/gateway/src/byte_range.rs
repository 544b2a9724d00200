//! Answers HTTP requests for content, whole or in part: it reads the range and cache headers of a
//! request and builds the headers of the answer. The content's name is its ETag, so the bytes under
//! a name must never change.

use std::ops::Range;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    IF_RANGE, RANGE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::problem::{Code, Problem};

/// The part of a content that an answer carries.
#[derive(Debug)]
pub struct Part {
    status: StatusCode,
    /// The range of bytes; empty if the client already has them.
    pub range: Range<u64>,
    length: u64,
    etag: String,
    kind: &'static str,
}

impl Part {
    /// Reads from the request's headers which part of a content of this name, kind and length to
    /// send.
    ///
    /// # Errors
    /// Fails if the content has no byte of the range.
    pub fn from_headers(
        headers: &HeaderMap,
        name: &str,
        kind: &'static str,
        length: u64,
    ) -> Result<Part, Problem> {
        let etag = format!("\"{name}\"");
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let mut part = Part {
            status: StatusCode::OK,
            range: 0..length,
            length,
            kind,
            etag,
        };
        let known = text(IF_NONE_MATCH)
            .unwrap_or_default()
            .split(',')
            .map(str::trim);
        if known
            .clone()
            .any(|known| known == part.etag || known == "*")
        {
            part.status = StatusCode::NOT_MODIFIED;
            part.range = 0..0;
            return Ok(part);
        }
        let is_same = text(IF_RANGE).is_none_or(|known| known == part.etag);
        match text(RANGE)
            .filter(|_| is_same)
            .and_then(|range| range_of(range, length))
        {
            None => Ok(part),
            Some(range) if range.is_empty() => {
                let detail = format!("the content has {length} bytes, and none of the range");
                let all = HeaderValue::try_from(format!("bytes */{length}"));
                let problem = Problem::new(Code::Range, detail, "ask for bytes that are there");
                Err(problem.with_header(CONTENT_RANGE, all.unwrap_or(HeaderValue::from_static(""))))
            }
            Some(range) => {
                part.status = StatusCode::PARTIAL_CONTENT;
                part.range = range;
                Ok(part)
            }
        }
    }

    /// Returns the answer with these bytes, or without a body if the client already has the
    /// content.
    pub fn build_response(self, bytes: Body) -> Response {
        let mut response = match self.status {
            StatusCode::NOT_MODIFIED => Body::empty().into_response(),
            _ => bytes.into_response(),
        };
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let mut put = |name: HeaderName, value: String| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        };
        put(ETAG, self.etag);
        put(ACCEPT_RANGES, "bytes".to_owned());
        // The name stands for these bytes only.
        put(
            CACHE_CONTROL,
            "private, immutable, max-age=31536000".to_owned(),
        );
        if self.status != StatusCode::NOT_MODIFIED {
            put(CONTENT_TYPE, self.kind.to_owned());
            put(
                CONTENT_LENGTH,
                (self.range.end - self.range.start).to_string(),
            );
        }
        if self.status == StatusCode::PARTIAL_CONTENT {
            let (first, last) = (self.range.start, self.range.end - 1);
            put(
                CONTENT_RANGE,
                format!("bytes {first}-{last}/{}", self.length),
            );
        }
        response
    }
}

/// Parses one range of bytes. The range is empty if the content has none of its bytes. Returns
/// `None` if the text is not a single range; the caller should then ignore it.
fn range_of(text: &str, length: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    if first.is_empty() {
        let many: u64 = last.parse().ok()?;
        return Some(length.saturating_sub(many)..length);
    }
    let first: u64 = first.parse().ok()?;
    let end = match last {
        "" => length,
        last => last.parse::<u64>().ok()?.saturating_add(1).min(length),
    };
    if last.parse().is_ok_and(|last: u64| last < first) {
        return None;
    }
    Some(first.min(end)..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_has_them() {
        assert_eq!(range_of("bytes=0-3", 10), Some(0..4));
        assert_eq!(range_of("bytes=4-", 10), Some(4..10));
        assert_eq!(range_of("bytes=-3", 10), Some(7..10));
        assert_eq!(range_of("bytes=-30", 10), Some(0..10));
        assert_eq!(range_of("bytes=4-99", 10), Some(4..10));
        assert!(range_of("bytes=10-", 10).unwrap().is_empty());
        assert!(range_of("bytes=-0", 10).unwrap().is_empty());
        assert!(range_of("bytes=0-", 0).unwrap().is_empty());
        for none in [
            "bytes=5-4",
            "bytes=a-b",
            "lines=0-1",
            "bytes=0-1,3-4",
            "bytes=-",
        ] {
            assert_eq!(range_of(none, 10), None, "{none}");
        }
    }
}
