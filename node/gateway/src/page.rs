//! Splits long lists into pages. A cursor names the entry behind which the next page begins, so
//! that a client sees each entry once although entries come and go meanwhile.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::LINK;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;

/// Default number of entries on a page.
const LIMIT: usize = 100;

/// Largest number of entries on a page.
const LIMIT_MAX: usize = 1_000;

/// Which page.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Paging {
    /// Entries at most: 1 to 1000, else 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// Where the last page ended, as its `next` says.
    pub cursor: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// The cursor of the next page; null where this is the last.
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
    /// Returns the page behind the cursor, from a list sorted by its keys.
    ///
    /// # Errors
    /// Fails if the limit or the cursor is invalid.
    pub fn from_sorted<K: Ord>(
        mut all: Vec<T>,
        key: impl Fn(&T) -> K,
        paging: &Paging,
        parse: impl Fn(&str) -> Option<K>,
        write: impl Fn(&K) -> String,
    ) -> Result<Page<T>, Problem> {
        let limit = paging.page_limit()?;
        let behind = paging.cursor.as_deref().map(|cursor| {
            let known = parse(cursor);
            known.ok_or_else(|| Problem::malformed_input("cursor is none that a page gave"))
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
        let link = self
            .next
            .as_ref()
            .map(|next| format!("<?cursor={next}>; rel=\"next\""));
        let link = link.and_then(|link| HeaderValue::try_from(link).ok());
        let mut response = Json(self).into_response();
        if let Some(link) = link {
            response.headers_mut().insert(LINK, link);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(all: &[u32], limit: usize, cursor: Option<String>) -> Page<u32> {
        let paging = Paging {
            limit: Some(limit),
            cursor,
        };
        let parse = |text: &str| text.parse().ok();
        Page::from_sorted(all.to_vec(), |one| *one, &paging, parse, u32::to_string).unwrap()
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
            Page::from_sorted(vec![1_u32], |one| *one, &paging, parse, u32::to_string).unwrap_err();
        }
    }
}
