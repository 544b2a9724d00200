//! Splits long lists into pages. A cursor holds the key of the last entry of a page. The next page
//! begins after that key, so a client sees no entry twice, even if entries come and go between its
//! requests.

use axum::Json;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::LINK;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;

/// Default number of entries on a page.
const LIMIT: usize = 100;

/// Largest number of entries on a page.
const LIMIT_MAX: usize = 1_000;

/// The query parameters that select a page.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Paging {
    /// The largest number of entries: 1 to 1000; 100 if absent.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// The cursor of the next page; null if this is the last.
    pub next: Option<String>,
}

impl Paging {
    /// Returns the requested number of entries.
    ///
    /// # Errors
    /// Fails if the number is zero or too large.
    pub fn page_limit(&self) -> Result<usize, Problem> {
        match self.limit {
            None => Ok(LIMIT),
            Some(limit @ 1..=LIMIT_MAX) => Ok(limit),
            Some(limit) => Err(Problem::malformed_input(format!(
                "limit is {limit}, and may be 1 to {LIMIT_MAX}"
            ))),
        }
    }
}

impl<T> Page<T> {
    /// Returns the page after the cursor of `all`, sorted by key. Keys must be unique; `parse` and
    /// `write` turn a key from and into a cursor.
    ///
    /// # Errors
    /// Fails if the limit or the cursor is invalid.
    pub fn from_entries<K: Ord>(
        mut all: Vec<T>,
        key: impl Fn(&T) -> K,
        paging: &Paging,
        parse: impl Fn(&str) -> Option<K>,
        write: impl Fn(&K) -> String,
    ) -> Result<Page<T>, Problem> {
        let limit = paging.page_limit()?;
        let behind = paging.cursor.as_deref().map(|cursor| {
            let known = parse(cursor);
            known.ok_or_else(|| Problem::malformed_input("the cursor is not the `next` of a page"))
        });
        let behind = behind.transpose()?;
        all.retain(|one| behind.as_ref().is_none_or(|behind| key(one) > *behind));
        all.sort_by_key(|one| key(one));
        let more = all.len() > limit;
        all.truncate(limit);
        let next = all.last().filter(|_| more).map(|last| write(&key(last)));
        Ok(Page { items: all, next })
    }
}

impl<T: Serialize> IntoResponse for Page<T> {
    fn into_response(self) -> Response {
        let next = self.next.clone().map(NextCursor);
        let mut response = Json(self).into_response();
        if let Some(next) = next {
            response.extensions_mut().insert(next);
        }
        response
    }
}

/// The cursor of the page after the one that a response contains.
#[derive(Clone)]
struct NextCursor(String);

/// Adds a `Link` header for the next page to a page of a list: the query of the request, with the
/// next cursor.
pub async fn link_next_page(request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let mut response = next.run(request).await;
    let link = response.extensions().get::<NextCursor>().map(|cursor| {
        let kept = query.split('&').filter(|pair| !pair.starts_with("cursor="));
        let kept = kept.filter(|pair| !pair.is_empty());
        let kept: String = kept.map(|pair| format!("{pair}&")).collect();
        format!("<?{kept}cursor={}>; rel=\"next\"", cursor.0)
    });
    let link = link.and_then(|link| HeaderValue::try_from(link).ok());
    if let Some(link) = link {
        response.headers_mut().insert(LINK, link);
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower_service::Service;

    use super::*;

    fn page(all: &[u32], limit: usize, cursor: Option<String>) -> Page<u32> {
        let paging = Paging {
            limit: Some(limit),
            cursor,
        };
        let parse = |text: &str| text.parse().ok();
        Page::from_entries(all.to_vec(), |one| *one, &paging, parse, u32::to_string).unwrap()
    }

    #[test]
    fn pages_tell_each_entry_once_although_others_go() {
        let first = page(&[5, 1, 3, 2, 4], 2, None);
        assert_eq!(
            (first.items, first.next.as_deref()),
            (vec![1, 2], Some("2"))
        );
        let second = page(&[5, 3, 4], 2, first.next);
        assert_eq!(
            (second.items, second.next.as_deref()),
            (vec![3, 4], Some("4"))
        );
        let last = page(&[5, 3, 4], 2, second.next);
        assert_eq!((last.items, last.next), (vec![5], None));
    }

    #[test]
    fn a_page_of_none_or_behind_nothing_is_refused() {
        for (limit, cursor) in [(Some(0), None), (Some(1001), None), (None, Some("x"))] {
            let cursor = cursor.map(str::to_owned);
            let paging = Paging { limit, cursor };
            let parse = |text: &str| text.parse().ok();
            Page::from_entries(vec![1_u32], |one| *one, &paging, parse, u32::to_string)
                .unwrap_err();
        }
    }

    #[tokio::test]
    async fn the_link_to_the_next_page_keeps_the_query() {
        let list = || std::future::ready(page(&[1, 2, 3], 2, None));
        let mut router = Router::new()
            .route("/", get(list))
            .layer(from_fn(link_next_page));
        let request = Request::builder().uri("/?limit=2&cursor=0&state=open");
        let request = request.body(Body::empty()).unwrap();
        let response = router.call(request).await.unwrap();
        let link = &response.headers()[LINK];
        assert_eq!(link, "<?limit=2&state=open&cursor=2>; rel=\"next\"");
    }
}
