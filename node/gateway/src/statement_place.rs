//! Cursors for pages of an account's statement.

use souk_node::protocols::statement::LogPlace;

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

/// Writes a place as a cursor.
pub fn format_cursor(place: LogPlace) -> String {
    format!("{}.{}.{}", place.index, place.offset, place.part)
}

fn parse_place(text: &str) -> Option<LogPlace> {
    let [index, offset, part] = text.split('.').collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(LogPlace {
        index: index.parse().ok()?,
        offset: offset.parse().ok()?,
        part: part.parse().ok()?,
    })
}
