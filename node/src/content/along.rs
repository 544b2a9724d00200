//! Contents that go along with the words that name them: who hears of a short one has it already,
//! and need not ask.

use std::collections::BTreeMap;

use bytes::Bytes;
use libp2p::PeerId;
use serde::{Deserialize, Serialize};
use souk_memory::{ContentId, StoreError};
use souk_roles::access::Scope;

use super::links::Carrier;
use super::transfers::{FetchedContent, Tensors};

/// Bytes that go along with a word to a provider at most.
pub(crate) const TO_PROVIDER_BYTES_MAX: usize = 64 << 10;

/// Bytes that go along with a word to a buyer at most: the logits of a row.
pub(crate) const TO_BUYER_BYTES_MAX: usize = 1 << 20;

/// Contents of a request that may go along. Those of a job's first are asked for as ever: that
/// measures the way between the two, by which the next job is planned.
pub(crate) fn of_request(request: u32, contents: Vec<ContentId>) -> Vec<ContentId> {
    match request {
        0 => Vec::new(),
        _ => contents,
    }
}

/// A word as it travels, with contents that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordWith<W> {
    /// The word.
    pub word: W,
    /// What goes along.
    pub contents: Vec<(ContentId, Bytes)>,
}

impl<W> WordWith<W> {
    /// A word by itself.
    pub const fn alone(word: W) -> Self {
        Self {
            word,
            contents: Vec::new(),
        }
    }
}

/// What came along and was not asked for yet, by who said it.
#[derive(Debug)]
pub(crate) struct CameAlong<S>(BTreeMap<ContentId, (S, Bytes)>);

impl<S> Default for CameAlong<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Copy + PartialEq> CameAlong<S> {
    /// Keeps those of some contents that were named.
    pub(crate) fn keep(
        &mut self,
        from: S,
        contents: Vec<(ContentId, Bytes)>,
        named: impl Iterator<Item = ContentId>,
    ) {
        let named: Vec<ContentId> = named.collect();
        for (id, bytes) in contents {
            if named.contains(&id) {
                self.0.insert(id, (from, bytes));
            }
        }
    }

    /// A content that came along, and from whom; once.
    pub(crate) fn take(&mut self, id: &ContentId) -> Option<(S, Bytes)> {
        self.0.remove(id)
    }

    /// Whoever said it is gone.
    pub(crate) fn forget(&mut self, from: S) {
        self.0.retain(|_, (other, _)| *other != from);
    }
}

impl Tensors {
    /// Those of some contents that are in memory and short enough together to go along with a
    /// word, the first ones first.
    pub(crate) fn along(
        &self,
        ids: impl IntoIterator<Item = ContentId>,
        bytes_max: usize,
    ) -> Vec<(ContentId, Bytes)> {
        let mut left = bytes_max;
        let short = |id: ContentId| {
            let bytes = self.store().in_reach(&id)?.bytes;
            left = left.checked_sub(bytes.len())?;
            Some((id, bytes))
        };
        ids.into_iter().map_while(short).collect()
    }

    /// Takes in what came along with a word, as if it had been asked for; what is `passing` is not
    /// written to a disk.
    ///
    /// # Errors
    /// [`StoreError`]: it is not what it was called, or there is no room.
    pub(crate) fn take_in(
        &self,
        (scope, peer): (Scope, PeerId),
        (id, bytes): (ContentId, Bytes),
        passing: bool,
    ) -> Result<FetchedContent, StoreError> {
        match passing {
            true => drop(self.store().put_passing(Some(id), bytes.clone())?),
            false => self.store().put_as(id, bytes.clone())?,
        }
        self.access().show(scope.buyer, id);
        Ok(FetchedContent {
            moved: bytes.len() as u64,
            bytes,
            from: Some((peer, Carrier::Stream)),
            took: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_named_is_kept_until_it_is_taken_or_its_sender_is_gone() {
        let contents = |texts: &[&'static str]| -> Vec<(ContentId, Bytes)> {
            let each = texts.iter();
            each.map(|text| {
                (
                    ContentId::of(text.as_bytes()),
                    Bytes::from_static(text.as_bytes()),
                )
            })
            .collect()
        };
        let mut along = CameAlong::default();
        let [a, b, c] = ["a", "b", "c"].map(|text| ContentId::of(text.as_bytes()));
        along.keep(1, contents(&["a", "b", "c"]), [a, b].into_iter());
        along.keep(2, contents(&["c"]), [c].into_iter());
        assert_eq!(along.take(&a), Some((1, Bytes::from_static(b"a"))));
        assert_eq!(along.take(&a), None);
        along.forget(1);
        assert_eq!(along.take(&b), None);
        assert!(along.take(&c).is_some());
    }
}
