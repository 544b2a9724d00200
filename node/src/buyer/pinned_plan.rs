//! Remembers the plans that `souk plan` showed, and checks that a submission still matches the one
//! whose hash the user gives.
//!
//! The hash of a plan covers its parts, providers and prices a second, but no times. So a
//! submission also compares the price of the job with the plan that the user saw and, if the hash
//! differs, its time.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_market::Credits;
use souk_memory::ContentId;

use super::Quote;

/// The folder of plans that users have seen, in the folder of the market.
pub const PLANS_FOLDER: &str = "buyer/plans";

/// How many plans are remembered; a plan is submitted soon or not at all.
const PLANS_MAX: usize = 256;

/// A user must give at least this many digits of a hash to name a plan.
const DIGITS_MIN: usize = 8;

/// A plan as the user saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PinnedPlan {
    /// The version of the file.
    pub format: u32,
    /// The plan's hash.
    pub hash: ContentId,
    /// The id of the model and its inputs.
    pub subject: ContentId,
    /// The planned price.
    pub price: Credits,
    /// The planned time, in seconds.
    pub seconds: f64,
}

/// Why a plan rules out the submission of a job.
#[derive(Debug, thiserror::Error)]
pub enum PlanRefusal {
    /// No such plan is known here, and the current plan has another hash.
    #[error("plan {wanted} was not made in this folder, and the current plan is {found}")]
    Unknown {
        /// The requested hash.
        wanted: String,
        /// The hash of the current plan.
        found: ContentId,
    },
    /// The plan is for another model or other inputs.
    #[error("plan {wanted} is for another model or other inputs")]
    Subject {
        /// The requested hash.
        wanted: String,
    },
    /// The price rose beyond the limit.
    #[error(
        "the book has moved: the job costs {now:.6} credits now, {then:.6} when it was planned, \
         {percent} % more are allowed"
    )]
    Price {
        /// Credits now.
        now: f64,
        /// Credits when it was planned.
        then: f64,
        /// The allowed increase, in per cent.
        percent: f64,
    },
    /// The time rose beyond the limit.
    #[error(
        "the book has moved: the job takes {now:.6} s now, {then:.6} s when it was planned, \
         {percent} % more are allowed"
    )]
    Time {
        /// Seconds now.
        now: f64,
        /// Seconds when it was planned.
        then: f64,
        /// The allowed increase, in per cent.
        percent: f64,
    },
}

/// Returns the one remembered plan whose hash begins with these digits.
fn find_plan(folder: &Path, begins: &str) -> Option<PinnedPlan> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found = names.filter(|name| name.starts_with(begins));
    match (found.next(), found.next()) {
        (Some(one), None) => config::read::<PinnedPlan>(&folder.join(one)).ok(),
        _ => None,
    }
}

impl PinnedPlan {
    /// Returns the record of a quote that a user sees.
    pub fn new(quote: &Quote, subject: ContentId) -> PinnedPlan {
        PinnedPlan {
            format: FORMAT,
            hash: quote.hash(),
            subject,
            price: quote.price(),
            seconds: quote.plan.makespan_seconds,
        }
    }

    /// Stores the plan below `folder`.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn save_plan(&self, folder: &Path) -> Result<(), ConfigError> {
        let failed = |source| ConfigError::File {
            path: folder.to_owned(),
            source,
        };
        fs::create_dir_all(folder).map_err(failed)?;
        forget_oldest(folder);
        config::write(&folder.join(format!("{}.json", self.hash)), self)
    }

    /// Compares this plan with the one whose hash is `wanted` or begins with it. It can cost and
    /// take up to `percent` more.
    ///
    /// # Errors
    /// [`PlanRefusal`]: the difference that is too large.
    pub fn check_against_stored(
        &self,
        folder: &Path,
        wanted: &str,
        percent: f64,
    ) -> Result<(), PlanRefusal> {
        let is_name =
            wanted.len() >= DIGITS_MIN && wanted.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_same = is_name && self.hash.to_string().starts_with(wanted);
        let then = is_name.then(|| find_plan(folder, wanted)).flatten();
        let wanted = wanted.to_owned();
        let Some(then) = then else {
            if is_same {
                return Ok(());
            }
            return Err(PlanRefusal::Unknown {
                wanted,
                found: self.hash,
            });
        };
        if then.subject != self.subject {
            return Err(PlanRefusal::Subject { wanted });
        }
        let most = 1.0 + percent / 100.0;
        let (now_price, then_price) = (self.price.0 as f64 / 1e6, then.price.0 as f64 / 1e6);
        if now_price > then_price * most {
            return Err(PlanRefusal::Price {
                now: now_price,
                then: then_price,
                percent,
            });
        }
        // The same devices take as long as before: only their measurement changed.
        if !is_same && self.seconds > then.seconds * most {
            return Err(PlanRefusal::Time {
                now: self.seconds,
                then: then.seconds,
                percent,
            });
        }
        Ok(())
    }
}

/// Removes the oldest file if there are too many.
fn forget_oldest(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .collect();
    if files.len() >= PLANS_MAX {
        files.sort();
        // A later call will remove a file that this one could not.
        let _ = fs::remove_file(&files[0].1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(word: &[u8], price: u64, seconds: f64) -> PinnedPlan {
        PinnedPlan {
            format: FORMAT,
            hash: ContentId::for_content(word),
            subject: ContentId::for_content(b"model"),
            price: Credits(price),
            seconds,
        }
    }

    #[test]
    fn a_plan_that_is_the_same_needs_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let now = shown(b"a", 1, 1.0);
        now.check_against_stored(folder.path(), &now.hash.to_string(), 0.0)
            .unwrap();
    }

    #[test]
    fn a_plan_that_is_the_same_may_not_have_become_dearer() {
        let folder = tempfile::tempdir().unwrap();
        let then = shown(b"a", 1_000, 1.0);
        then.save_plan(folder.path()).unwrap();
        let check = |price, seconds, percent| {
            let now = shown(b"a", price, seconds);
            now.check_against_stored(folder.path(), &now.hash.to_string(), percent)
        };
        check(1_050, 9.0, 5.0).unwrap();
        let refused = check(3_600, 1.0, 5.0).unwrap_err();
        assert!(matches!(refused, PlanRefusal::Price { .. }), "{refused}");
    }

    #[test]
    fn the_book_may_move_as_far_as_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let then = shown(b"a", 100, 1.0);
        then.save_plan(folder.path()).unwrap();
        let check =
            |now: PinnedPlan| now.check_against_stored(folder.path(), &then.hash.to_string(), 5.0);
        check(shown(b"b", 105, 1.0)).unwrap();
        assert!(matches!(
            check(shown(b"b", 106, 1.0)),
            Err(PlanRefusal::Price { .. })
        ));
        assert!(matches!(
            check(shown(b"b", 90, 1.1)),
            Err(PlanRefusal::Time { .. })
        ));
        let other = PinnedPlan {
            subject: ContentId::for_content(b"other"),
            ..shown(b"b", 90, 1.0)
        };
        assert!(matches!(check(other), Err(PlanRefusal::Subject { .. })));
    }

    #[test]
    fn a_hash_never_shown_is_said_to_be_so() {
        let folder = tempfile::tempdir().unwrap();
        let refused =
            shown(b"b", 1, 1.0).check_against_stored(folder.path(), "../../etc/passwd", 5.0);
        assert!(matches!(refused, Err(PlanRefusal::Unknown { .. })));
    }
}
