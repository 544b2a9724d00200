//! Parses the cursor with which a client asks for the next page of an account's statement (the
//! history of its credits).

use souk_api::account::parse_place;
use souk_network::protocols::statement::LogPlace;

use crate::page::Paging;
use crate::problem::Problem;

/// Returns the movement behind which a page begins, or `None` for the newest page.
///
/// # Errors
/// Fails if the cursor is invalid.
pub fn parse_cursor(paging: &Paging) -> Result<Option<LogPlace>, Problem> {
    let place = |cursor: &String| {
        let place = parse_place(cursor);
        place.ok_or_else(|| Problem::malformed_input("cursor is none that a page gave"))
    };
    paging.cursor.as_ref().map(place).transpose()
}
