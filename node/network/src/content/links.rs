//! Measures the links between peers, from transfers as they happen.
//!
//! A node asks no peer for its speed and sends no probes: it measures each transfer. It keeps the
//! last few with their age, so that a buyer's plan can prefer recent measurements to stated
//! figures.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::config::{self, ConfigError, FORMAT};
use souk_market::AccountKey;

/// The name of the file in a node's folder.
pub const LINKS_FILE: &str = "links.json";

/// How many transfers of a link are remembered.
const SAMPLES_MAX: usize = 16;

/// How many links are remembered; beyond that, the least recently used one is forgotten.
const LINKS_MAX: usize = 1024;

/// The least length of a transfer that measures bandwidth; shorter ones measure latency.
const TELLING_BYTES: u64 = 256 << 10;

/// The age from which a measurement no longer counts.
const AGE_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// The shortest time between two writes of the file.
const SAVE_PERIOD_MS: u64 = 1000;

/// The carrier of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// A direct channel.
    Direct,
    /// A stream of the connection that all protocols share.
    Stream,
}

/// The measurement of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When it ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// The received bytes.
    pub bytes: u64,
    /// The time from the first to the last byte, in microseconds.
    pub micros: u64,
    /// The time from the request to the head of the answer, in microseconds, if it was measured.
    pub latency_micros: Option<u64>,
    /// The carrier of the content.
    pub way: Carrier,
}

/// The measurements of one direction between two peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Link {
    samples: VecDeque<Sample>,
}

/// The contents of `links.json`.
#[derive(Serialize, Deserialize)]
struct LinksFile {
    format: u32,
    links: Vec<LinkRecord>,
}

/// A link with its two ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The account that sent.
    pub from: AccountKey,
    /// The account that received.
    pub to: AccountKey,
    /// The measured transfers.
    pub samples: Link,
}

impl Link {
    fn add(&mut self, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Returns the transfers, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// Returns the last transfer.
    pub fn last_sample(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// Returns the bytes per second of the recent transfers that were long enough and used the same
    /// carrier as the last of them; none if there is no such transfer.
    pub fn bytes_per_second(&self, now_ms: u64) -> Option<f64> {
        let telling = |sample: &&Sample| {
            let fresh = now_ms.saturating_sub(sample.at_ms) < AGE_MAX_MS;
            fresh && sample.bytes >= TELLING_BYTES && sample.micros > 0
        };
        let way = self.samples.iter().rev().find(telling)?.way;
        let of_way = self
            .samples
            .iter()
            .filter(telling)
            .filter(|sample| sample.way == way);
        let (bytes, micros) = of_way.fold((0, 0), |(bytes, micros), sample| {
            (bytes + sample.bytes, micros + sample.micros)
        });
        Some(bytes as f64 / (micros as f64 / 1e6))
    }

    /// Returns the shortest recent latency, in seconds, because longer ones include waiting.
    pub fn latency_seconds(&self, now_ms: u64) -> Option<f64> {
        let fresh = |sample: &&Sample| now_ms.saturating_sub(sample.at_ms) < AGE_MAX_MS;
        let fresh = self.samples.iter().filter(fresh);
        let shortest = fresh.filter_map(|sample| sample.latency_micros).min()?;
        Some(shortest as f64 / 1e6)
    }
}

/// All measured links of a node.
#[derive(Debug)]
pub struct Links {
    file: Option<PathBuf>,
    inner: Mutex<KnownLinks>,
}

#[derive(Debug, Default)]
struct KnownLinks {
    known: BTreeMap<(AccountKey, AccountKey), Link>,
    saved_ms: u64,
    unsaved: bool,
}

impl Links {
    /// Reads the links from `file`, if it exists.
    pub fn load_or_default(file: Option<PathBuf>) -> Links {
        let mut inner = KnownLinks::default();
        if let Some(path) = &file {
            match config::read::<LinksFile>(path) {
                Ok(kept) => {
                    let ends = |known: LinkRecord| ((known.from, known.to), known.samples);
                    inner.known = kept.links.into_iter().map(ends).collect();
                }
                Err(ConfigError::Missing { .. }) => {}
                Err(error) => tracing::warn!(%error, "could not read the link samples"),
            }
        }
        let inner = Mutex::new(inner);
        Links { file, inner }
    }

    /// Adds the measurement of a transfer.
    pub fn record_sample(&self, from: AccountKey, to: AccountKey, sample: Sample) {
        let mut inner = self.lock_inner();
        inner.known.entry((from, to)).or_default().add(sample);
        if inner.known.len() > LINKS_MAX {
            let last = |link: &Link| link.last_sample().map(|sample| sample.at_ms);
            let oldest = inner.known.iter().min_by_key(|(_, link)| last(link));
            if let Some(ends) = oldest.map(|(ends, _)| *ends) {
                inner.known.remove(&ends);
            }
        }
        inner.unsaved = true;
    }

    /// Returns the link from one peer to another, if it was measured.
    pub fn link_between(&self, from: AccountKey, to: AccountKey) -> Option<Link> {
        self.lock_inner().known.get(&(from, to)).cloned()
    }

    /// Returns all links.
    pub fn list_links(&self) -> Vec<LinkRecord> {
        let inner = self.lock_inner();
        let known = inner.known.iter().map(|((from, to), samples)| LinkRecord {
            from: *from,
            to: *to,
            samples: samples.clone(),
        });
        known.collect()
    }

    /// Writes the file if something changed and it is time. You should call it where the thread can
    /// wait for a disk.
    pub fn save(&self, now_ms: u64) {
        let Some(path) = &self.file else { return };
        {
            let mut inner = self.lock_inner();
            if !inner.unsaved || now_ms.saturating_sub(inner.saved_ms) < SAVE_PERIOD_MS {
                return;
            }
            inner.unsaved = false;
            inner.saved_ms = now_ms;
        }
        let file = LinksFile {
            format: FORMAT,
            links: self.list_links(),
        };
        if let Err(error) = config::write(path, &file) {
            tracing::warn!(%error, "could not write the link samples");
        }
    }

    fn lock_inner(&self) -> MutexGuard<'_, KnownLinks> {
        // A panic cannot leave a change half done under this lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.save(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: AccountKey = AccountKey([1; 32]);
    const THERE: AccountKey = AccountKey([2; 32]);

    fn sample(at_ms: u64, bytes: u64, micros: u64, way: Carrier) -> Sample {
        Sample {
            at_ms,
            bytes,
            micros,
            latency_micros: Some(micros / 10),
            way,
        }
    }

    #[test]
    fn a_link_is_as_fast_as_its_last_transfers_were() {
        let links = Links::load_or_default(None);
        assert_eq!(links.link_between(THERE, HERE), None);
        links.record_sample(THERE, HERE, sample(1, 10, 500, Carrier::Stream));
        let link = links.link_between(THERE, HERE).unwrap();
        assert_eq!(
            link.bytes_per_second(1),
            None,
            "ten bytes tell nothing of bandwidth"
        );
        assert_eq!(link.latency_seconds(1), Some(50e-6));
        for n in 0..40 {
            links.record_sample(THERE, HERE, sample(n, 1 << 20, 1 << 10, Carrier::Direct));
        }
        let link = links.link_between(THERE, HERE).unwrap();
        assert_eq!(link.samples().count(), SAMPLES_MAX);
        let rate = link.bytes_per_second(40).unwrap();
        assert!((rate - 1024e6).abs() < 1.0, "{rate}");
        assert_eq!(
            links.link_between(HERE, THERE),
            None,
            "each direction is a link"
        );
        assert_eq!(
            link.bytes_per_second(AGE_MAX_MS + 40),
            None,
            "yesterday is not today"
        );
    }

    #[test]
    fn the_way_taken_last_is_the_one_that_counts() {
        let links = Links::load_or_default(None);
        links.record_sample(THERE, HERE, sample(1, 1 << 20, 100, Carrier::Direct));
        links.record_sample(THERE, HERE, sample(2, 1 << 20, 1 << 20, Carrier::Stream));
        let rate = links.link_between(THERE, HERE).unwrap().bytes_per_second(3);
        assert!((rate.unwrap() - 1e6).abs() < 1.0);
    }

    #[test]
    fn what_is_known_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(LINKS_FILE);
        let links = Links::load_or_default(Some(file.clone()));
        links.record_sample(THERE, HERE, sample(7, 1 << 20, 99, Carrier::Direct));
        let known = links.link_between(THERE, HERE);
        drop(links);
        assert_eq!(
            Links::load_or_default(Some(file.clone())).link_between(THERE, HERE),
            known
        );
        std::fs::write(&file, "garbage").unwrap();
        assert!(Links::load_or_default(Some(file)).list_links().is_empty());
    }

    #[test]
    fn no_more_links_are_kept_than_fit() {
        let links = Links::load_or_default(None);
        for n in 0..LINKS_MAX as u64 + 5 {
            let mut from = [3; 32];
            from[..8].copy_from_slice(&n.to_le_bytes());
            links.record_sample(AccountKey(from), HERE, sample(n, 1, 1, Carrier::Stream));
        }
        assert_eq!(links.list_links().len(), LINKS_MAX);
    }
}
