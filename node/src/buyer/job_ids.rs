//! Draws the ids of jobs.

use std::sync::atomic::{AtomicU32, Ordering};

use souk_folder::clock::unix_us;
use souk_market::{AccountKey, JobId};
use souk_memory::ContentId;

/// How many ids this process has drawn.
static DRAWN: AtomicU32 = AtomicU32::new(0);

/// Returns a new job id of an account. The time, the process id and a counter make it unique.
#[must_use]
pub fn draw_job(account: AccountKey) -> JobId {
    let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
    let mut words = account.0.to_vec();
    words.extend_from_slice(&unix_us().to_le_bytes());
    words.extend_from_slice(&std::process::id().to_le_bytes());
    words.extend_from_slice(&drawn.to_le_bytes());
    JobId(*ContentId::for_content(&words).as_bytes())
}
