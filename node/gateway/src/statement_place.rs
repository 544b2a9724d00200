//! Where in an account's statement a page begins.

use souk_node::protocols::statement::LogPlace;

use crate::page::Paging;
use crate::problem::Problem;

/// Behind which movement a page begins; none for the newest.
///
/// # Errors
/// When the cursor is none.
pub fn behind(paging: &Paging) -> Result<Option<LogPlace>, Problem> {
    let place = |cursor: &String| {
        let place = parse(cursor);
        place.ok_or_else(|| Problem::malformed("cursor is none that a page gave"))
    };
    paging.cursor.as_ref().map(place).transpose()
}

/// As a cursor.
pub fn written(place: LogPlace) -> String {
    format!("{}.{}.{}", place.index, place.offset, place.part)
}

fn parse(text: &str) -> Option<LogPlace> {
    let [index, offset, part] = text.split('.').collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(LogPlace {
        index: index.parse().ok()?,
        offset: offset.parse().ok()?,
        part: part.parse().ok()?,
    })
}
