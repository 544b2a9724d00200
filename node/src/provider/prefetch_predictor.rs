//! Predicts from past leases which contents the next one needs, and loads them into memory in
//! advance.
//!
//! A provider's memory holds less than its folder, and is empty after a start. The provider
//! remembers over restarts which model's work followed which. While a lease computes, it loads and
//! checks the contents that usually come next, so that the next buyer does not wait for the disk.
//! It remembers only ids of contents, neither buyers nor computations.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_memory::prefetch_predictor::PrefetchPredictor;
use souk_memory::{ContentId, Store};

/// The name of the file in a provider's folder.
const FORESIGHT_FILE: &str = "foresight.json";

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct PredictorFile {
    format: u32,
    foresight: PrefetchPredictor,
}

/// Predicts the next contents of a provider's store and loads them.
pub(super) struct ContentPrefetcher {
    file: PathBuf,
    store: Arc<Store>,
    known: Mutex<PrefetchPredictor>,
    unsaved: AtomicBool,
    /// Whether a prediction is being loaded; one at a time saturates a disk.
    busy: AtomicBool,
}

impl ContentPrefetcher {
    /// Reads the record of past leases from a provider's folder, and immediately begins to load the
    /// contents that usually come next, because the store's memory is empty.
    pub(super) fn open_and_recall(home: &Path, store: &Arc<Store>) -> Arc<ContentPrefetcher> {
        let outlook = Arc::new(ContentPrefetcher::load_or_default(home, store.clone()));
        tokio::spawn(outlook.clone().prefetch_contents());
        outlook
    }

    fn load_or_default(home: &Path, store: Arc<Store>) -> ContentPrefetcher {
        let file = home.join(FORESIGHT_FILE);
        let known = match config::read::<PredictorFile>(&file) {
            Ok(kept) if kept.foresight.is_sound() => kept.foresight,
            Err(ConfigError::Missing { .. }) => PrefetchPredictor::default(),
            Ok(_) => {
                tracing::warn!(
                    ?file,
                    "the prefetch history contradicts itself; starting without it"
                );
                PrefetchPredictor::default()
            }
            Err(error) => {
                tracing::warn!(%error, "could not read the prefetch history");
                PrefetchPredictor::default()
            }
        };
        ContentPrefetcher {
            file,
            store,
            known: Mutex::new(known),
            unsaved: AtomicBool::new(false),
            busy: AtomicBool::new(false),
        }
    }

    /// Records the contents of a lease that has begun, and loads those that usually come next.
    pub(super) fn on_lease(self: &Arc<Self>, graph: ContentId, contents: Vec<ContentId>) {
        self.record_work(graph, contents);
        tokio::spawn(self.clone().prefetch_contents());
    }

    fn record_work(&self, graph: ContentId, contents: Vec<ContentId>) {
        self.lock_known().record_run(graph, contents);
        self.unsaved.store(true, Ordering::Relaxed);
    }

    /// Loads the contents that are probably needed next into memory; returns the bytes read.
    async fn prefetch_contents(self: Arc<Self>) -> u64 {
        let next = self.lock_known().predict_contents();
        if next.is_empty() || self.busy.swap(true, Ordering::AcqRel) {
            return 0;
        }
        let (store, outlook) = (self.store.clone(), self.clone());
        let recalling = tokio::task::spawn_blocking(move || {
            let bytes = store.preload_content(&next);
            outlook.busy.store(false, Ordering::Release);
            bytes
        });
        let bytes = recalling.await.expect("reading a folder does not panic");
        if bytes > 0 {
            tracing::debug!(bytes, "prefetched contents into memory");
        }
        bytes
    }

    /// Writes the file if it has changed; the caller must be able to wait for the disk.
    pub(super) fn save(&self) {
        if !self.unsaved.swap(false, Ordering::Relaxed) {
            return;
        }
        let file = PredictorFile {
            format: FORMAT,
            foresight: self.lock_known().clone(),
        };
        if let Err(error) = config::write(&self.file, &file) {
            tracing::warn!(%error, "could not write the prefetch history");
        }
    }

    fn lock_known(&self) -> MutexGuard<'_, PrefetchPredictor> {
        // No code here panics half-way through a change, except on a broken invariant, which panics
        // again.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ContentPrefetcher {
    fn drop(&mut self) {
        self.save();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_memory::StoreConfig;

    use super::*;

    fn store(folder: &Path) -> Arc<Store> {
        let config = StoreConfig {
            memory_bytes_max: 1000,
            folder: Some(folder.join("tensors")),
            folder_bytes_max: 100_000,
        };
        Arc::new(Store::open(config).unwrap())
    }

    /// A lease whose graph and one weight have 200 bytes each.
    fn lease(store: &Store, model: u8) -> [ContentId; 2] {
        let put = |n: u8| store.put(Bytes::from(vec![n; 200])).unwrap();
        [put(2 * model), put(2 * model + 1)]
    }

    fn read_all(store: &Store, lease: &[ContentId; 2]) {
        for id in lease {
            assert!(store.get(id).unwrap().is_some());
        }
    }

    #[tokio::test]
    async fn a_lease_finds_what_history_foresaw_in_memory_and_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let first = store(home.path());
        let leases = [1, 2, 3].map(|model| lease(&first, model));
        let outlook = Arc::new(ContentPrefetcher::load_or_default(
            home.path(),
            first.clone(),
        ));
        for start in leases.iter().cycle().take(9) {
            read_all(&first, start);
            outlook.record_work(start[0], start.to_vec());
            outlook.clone().prefetch_contents().await;
        }
        let awaited = first.usage().awaited_reads;
        for start in leases.iter().cycle().take(30) {
            read_all(&first, start);
            outlook.record_work(start[0], start.to_vec());
            outlook.clone().prefetch_contents().await;
        }
        assert_eq!(
            first.usage().awaited_reads,
            awaited,
            "no lease waited for the disk"
        );
        drop((outlook, first));
        let second = store(home.path());
        let outlook = Arc::new(ContentPrefetcher::load_or_default(
            home.path(),
            second.clone(),
        ));
        assert_eq!(outlook.clone().prefetch_contents().await, 400);
        read_all(&second, &leases[0]);
        assert_eq!(second.usage().awaited_reads, 0);
    }

    #[tokio::test]
    async fn a_damaged_memory_of_leases_foresees_nothing() {
        let home = tempfile::tempdir().unwrap();
        let id = ContentId::for_content(b"x").to_string();
        let unsound = format!(
            r#"{{"format": {FORMAT}, "foresight": {{"works": {{}}, "order": ["{id}", "{id}"]}}}}"#
        );
        for text in ["garbage", unsound.as_str()] {
            std::fs::write(home.path().join(FORESIGHT_FILE), text).unwrap();
            let outlook = Arc::new(ContentPrefetcher::load_or_default(
                home.path(),
                store(home.path()),
            ));
            assert_eq!(outlook.prefetch_contents().await, 0);
        }
    }
}
