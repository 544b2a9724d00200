//! Stores idempotency keys, by which the gateway recognises a repeated request, with the results of
//! the requests. Each key is on disk before the gateway buys anything under it.
//!
//! ```text
//! buyer/keys/ID.json    what was asked under the key of that id, and the answer
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use souk_api::order::PlacedView;
use souk_node::buyer::journal::write_durably;
use souk_node::market::{AccountKey, JobId};
use souk_node::memory::ContentId;

use crate::problem::{Code, Problem};

/// Folder of the keys, relative to the folder of the market.
const FOLDER: &str = "buyer/keys";

/// Age beyond which pruning can remove a key.
const AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Number of keys at which the gateway prunes the oldest, even younger ones than [`AGE_MAX`], and
/// the number that stays.
const KEYS_MAX: usize = 16_384;
const KEYS_KEPT: usize = 12_288;

/// Largest length of a key, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// The purpose of a key; the same key for two purposes counts as two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Submits a job.
    Job,
    /// Places an order.
    Order,
}

/// The record of a used key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsedKey {
    /// The idempotency key.
    pub key: String,
    /// BLAKE3 of the body as received: the gateway refuses the same key with another body.
    pub body_hash: String,
    /// Time of use, in milliseconds since 1970.
    pub at_ms: u64,
    /// The placed order; `None` for a job, or before the market's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<PlacedView>,
}

/// The store of recently used keys.
#[derive(Debug)]
pub struct Keys {
    folder: PathBuf,
    count: AtomicUsize,
}

/// Returns the idempotency key of a request.
///
/// # Errors
/// Fails if the key is missing, repeated or invalid.
pub fn idempotency_key(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut all = headers.get_all("idempotency-key").iter();
    let (Some(key), None) = (all.next(), all.next()) else {
        let detail = "the header Idempotency-Key is missing, or there more than once";
        let hint = "give each a key of its own, and the same again where no answer came";
        return Err(Problem::new(Code::Malformed, detail, hint));
    };
    let is_fine = |key: &&str| {
        !key.is_empty() && key.len() <= KEY_BYTES_MAX && key.bytes().all(|it| it.is_ascii_graphic())
    };
    key.to_str().ok().filter(is_fine).ok_or_else(|| {
        let detail = "Idempotency-Key is 1 to 255 letters, digits and signs";
        Problem::malformed_input(detail)
    })
}

/// Returns the id that an account's request has under a key. It is the same each time, so that the
/// account cannot buy twice.
pub fn id(account: AccountKey, purpose: Purpose, key: &str) -> JobId {
    let mut words = match purpose {
        Purpose::Job => b"souk gateway job 1".to_vec(),
        Purpose::Order => b"souk gateway order 1".to_vec(),
    };
    words.extend_from_slice(&account.0);
    words.extend_from_slice(key.as_bytes());
    JobId(*ContentId::for_content(&words).as_bytes())
}

impl UsedKey {
    /// Checks that a request repeats the one under this key.
    ///
    /// # Errors
    /// Fails if the key was used for another body.
    pub fn check_repeat(&self, key: &str, body_hash: &str) -> Result<(), Problem> {
        if self.key == key && self.body_hash == body_hash {
            return Ok(());
        }
        let detail = "this key was used for another body";
        Err(Problem::new(
            Code::KeyReused,
            detail,
            "give each question a key of its own",
        ))
    }
}

impl Keys {
    /// Opens the keys of a market's folder.
    ///
    /// # Errors
    /// Fails if the folder cannot be created.
    pub fn open(folder: &Path) -> io::Result<Keys> {
        let folder = folder.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let count = AtomicUsize::new(fs::read_dir(&folder)?.count());
        Ok(Keys { folder, count })
    }

    /// Returns the record of the key with this id.
    pub fn find_key(&self, id: JobId) -> Option<UsedKey> {
        read(&self.path(id))
    }

    /// Stores a record, which is on disk when this returns. You must store it before you buy
    /// anything under its key.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn store_key(&self, id: JobId, used: &UsedKey) -> Result<(), Problem> {
        let path = self.path(id);
        if !path.exists() && self.count.fetch_add(1, Ordering::Relaxed) >= KEYS_MAX {
            self.prune_old_keys();
        }
        let bytes = serde_json::to_vec(used).map_err(Problem::unexpected_failure)?;
        Ok(write_durably(&path, &bytes)?)
    }

    /// Removes a key. You must not remove one under which something was bought.
    ///
    /// # Errors
    /// Fails if the file cannot be removed.
    pub fn remove_key(&self, id: JobId) -> Result<(), Problem> {
        self.count.fetch_sub(1, Ordering::Relaxed);
        fs::remove_file(self.path(id)).map_err(Problem::unexpected_failure)
    }

    /// Returns the orders that were placed under any key since this time, in milliseconds since
    /// 1970.
    pub fn orders_since(&self, ms: u64) -> BTreeSet<u64> {
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let files = self.list_files().into_iter().filter(|(at, _)| *at >= since);
        let used = files.filter_map(|(_, path)| read(&path));
        used.filter_map(|used| Some(used.placed?.order)).collect()
    }

    fn path(&self, id: JobId) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// Returns all files with the times of their last writes.
    fn list_files(&self) -> Vec<(SystemTime, PathBuf)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let timed = entries.map(|entry| {
            let at = entry.metadata().and_then(|about| about.modified());
            (at.unwrap_or(SystemTime::UNIX_EPOCH), entry.path())
        });
        timed.collect()
    }

    fn prune_old_keys(&self) {
        let mut files = self.list_files();
        files.sort();
        let beyond = files.len().saturating_sub(KEYS_KEPT);
        let is_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > AGE_MAX);
        let old = files.iter().take_while(|(at, _)| is_old(at)).count();
        let gone = files.iter().take(old.max(beyond));
        // A file that cannot be removed does no harm.
        gone.for_each(|(_, path)| drop(fs::remove_file(path)));
        let left = files.len() - old.max(beyond);
        self.count.store(left, Ordering::Relaxed);
    }
}

fn read(path: &Path) -> Option<UsedKey> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(key: &str) -> UsedKey {
        UsedKey {
            key: key.to_owned(),
            body_hash: "0".to_owned(),
            at_ms: 7,
            placed: None,
        }
    }

    #[test]
    fn a_key_is_found_again_by_its_id_and_for_its_purpose_alone() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let account = AccountKey([7; 32]);
        let of = |purpose| id(account, purpose, "first");
        keys.store_key(of(Purpose::Job), &used("first")).unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let found = keys.find_key(of(Purpose::Job)).unwrap();
        assert!(found.check_repeat("first", "0").is_ok());
        assert_eq!(
            found.check_repeat("first", "1").unwrap_err().code,
            Code::KeyReused
        );
        assert!(keys.find_key(of(Purpose::Order)).is_none());
        keys.remove_key(of(Purpose::Job)).unwrap();
        assert!(keys.find_key(of(Purpose::Job)).is_none());
    }

    #[test]
    fn the_newest_keys_stay_where_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let old = keys.path(JobId([1; 32]));
        for n in 0..KEYS_MAX {
            fs::write(keys.folder.join(format!("{n}.json")), "{}").unwrap();
        }
        fs::write(&old, "{}").unwrap();
        let day_ago = SystemTime::now() - 2 * AGE_MAX;
        let file = fs::File::options().write(true).open(&old).unwrap();
        file.set_modified(day_ago).unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        keys.store_key(JobId([2; 32]), &used("new")).unwrap();
        assert!(!old.exists());
        assert_eq!(keys.list_files().len(), KEYS_KEPT + 1);
        assert!(keys.find_key(JobId([2; 32])).is_some());
    }

    #[test]
    fn a_question_has_one_key_of_plain_signs() {
        let with = |keys: &[&str]| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append("idempotency-key", key.parse().unwrap());
            }
            idempotency_key(&headers).map(str::to_owned).ok()
        };
        assert_eq!(with(&["first"]).as_deref(), Some("first"));
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        for none in [&[][..], &["a", "b"], &[""], &["a b"], &[&long]] {
            assert_eq!(with(none), None, "{none:?}");
        }
    }
}
