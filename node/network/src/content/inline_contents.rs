//! Sends short contents along with the messages that name them, so that the receiver need not
//! request them. Buyers and providers use it for the messages of a lease (bought device time).

use std::collections::BTreeMap;

use bytes::Bytes;
use libp2p::PeerId;
use serde::{Deserialize, Serialize};
use souk_memory::{ContentId, StoreError};
use souk_roles::access::Scope;

use super::links::Carrier;
use super::transfers::{FetchedContent, Tensors};

/// The most bytes that travel with a message to a provider.
pub const TO_PROVIDER_BYTES_MAX: usize = 64 << 10;

/// The most bytes that travel with a message to a buyer: the logits of a row.
pub const TO_BUYER_BYTES_MAX: usize = 1 << 20;

/// Returns the contents of a request that can travel with a message. Providers fetch those of a
/// job's first request as usual, which measures the link for the next job's plan.
pub fn of_request(request: u32, contents: Vec<ContentId>) -> Vec<ContentId> {
    match request {
        0 => Vec::new(),
        _ => contents,
    }
}

/// A message, with contents that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageWithContents<W> {
    /// The message itself.
    pub message: W,
    /// The contents, each with its id.
    pub contents: Vec<(ContentId, Bytes)>,
}

impl<W> MessageWithContents<W> {
    /// Returns a message without contents.
    pub const fn without_contents(message: W) -> Self {
        Self {
            message,
            contents: Vec::new(),
        }
    }
}

/// Contents that came with messages and wait for their use, by sender.
#[derive(Debug)]
pub struct InlineContents<S>(BTreeMap<ContentId, (S, Bytes)>);

impl<S> Default for InlineContents<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Copy + PartialEq> InlineContents<S> {
    /// Keeps those contents that the message named.
    pub fn keep_named(
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

    /// Removes and returns a content and its sender.
    pub fn take_content(&mut self, id: &ContentId) -> Option<(S, Bytes)> {
        self.0.remove(id)
    }

    /// Drops the contents of a sender.
    pub fn forget_sender(&mut self, from: S) {
        self.0.retain(|_, (other, _)| *other != from);
    }
}

impl Tensors {
    /// Returns the first of these contents that are in memory and together short enough to travel
    /// with a message. A node that limits its uploads sends none this way: messages are not paced,
    /// so the receiver fetches the contents within the limit.
    pub fn inline_contents(
        &self,
        ids: impl IntoIterator<Item = ContentId>,
        bytes_max: usize,
    ) -> Vec<(ContentId, Bytes)> {
        let mut left = match self.limits_uploads() {
            true => return Vec::new(),
            false => bytes_max,
        };
        let short = |id: ContentId| {
            let bytes = self.store().in_reach(&id)?.bytes;
            left = left.checked_sub(bytes.len())?;
            Some((id, bytes))
        };
        ids.into_iter().map_while(short).collect()
    }

    /// Stores a content that came with a message, as if it was fetched. A `passing` content is not
    /// written to a disk.
    ///
    /// # Errors
    /// [`StoreError`]: the content does not match its id, or there is no room.
    pub fn take_in(
        &self,
        (scope, peer): (Scope, PeerId),
        (id, bytes): (ContentId, Bytes),
        passing: bool,
    ) -> Result<FetchedContent, StoreError> {
        match passing {
            true => drop(self.store().put_passing(Some(id), bytes.clone())?),
            false => self.store().put_as(id, bytes.clone())?,
        }
        self.access().record_arrival(scope.buyer, id);
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
                    ContentId::for_content(text.as_bytes()),
                    Bytes::from_static(text.as_bytes()),
                )
            })
            .collect()
        };
        let mut along = InlineContents::default();
        let [a, b, c] = ["a", "b", "c"].map(|text| ContentId::for_content(text.as_bytes()));
        along.keep_named(1, contents(&["a", "b", "c"]), [a, b].into_iter());
        along.keep_named(2, contents(&["c"]), [c].into_iter());
        assert_eq!(along.take_content(&a), Some((1, Bytes::from_static(b"a"))));
        assert_eq!(along.take_content(&a), None);
        along.forget_sender(1);
        assert_eq!(along.take_content(&b), None);
        assert!(along.take_content(&c).is_some());
    }
}
