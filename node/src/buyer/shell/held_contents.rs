//! Keeps the inputs and outputs of a job's requests in the buyer's store while the job needs them.
//! The store is bounded and has one copy of each content.
//!
//! The contents of a request leave the store once the caller has its answer, because no provider
//! computes an answered request again. Values that more than one request needs stay until the job
//! ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use souk_memory::{ContentId, HeldContent, Store, StoreError, Tensor};

/// What a job holds in the store. Dropping it drops the contents.
pub(super) struct HeldContents {
    store: Arc<Store>,
    /// The contents of each request without an answer.
    by_request: BTreeMap<u32, Vec<HeldContent>>,
    /// The contents to hold until the job ends.
    to_end: Vec<HeldContent>,
}

impl HeldContents {
    /// Holds contents until the job ends: the values that an earlier life of it kept.
    pub(super) fn new(store: Arc<Store>, to_end: Vec<HeldContent>) -> HeldContents {
        HeldContents {
            store,
            by_request: BTreeMap::new(),
            to_end,
        }
    }

    /// Stores the inputs of a request.
    pub(super) fn put_inputs(
        &mut self,
        request: u32,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(String, ContentId)>, StoreError> {
        let put = |tensor: &Tensor| HeldContent::put(&self.store, tensor.to_blob());
        let held: Vec<HeldContent> = inputs.values().map(put).collect::<Result<_, _>>()?;
        let ids = held.iter().map(HeldContent::id);
        let ids = inputs.keys().cloned().zip(ids).collect();
        self.by_request.entry(request).or_default().extend(held);
        Ok(ids)
    }

    /// Returns whether a content is of a request without an answer, or held until the job ends.
    pub(super) fn holds(&self, id: &ContentId) -> bool {
        let mut held = self.by_request.values().flatten().chain(&self.to_end);
        held.any(|held| held.id() == *id)
    }

    /// Holds a content that is about to be fetched, until the caller has the answer to a request or
    /// until the job ends. Returns a second hold, for the time of the fetch: the content can come
    /// after the answer.
    pub(super) fn hold_fetched(&mut self, request: Option<u32>, id: ContentId) -> HeldContent {
        let held = HeldContent::for_id(&self.store, id);
        let of_request = request.and_then(|request| self.by_request.get_mut(&request));
        of_request.unwrap_or(&mut self.to_end).push(held);
        HeldContent::for_id(&self.store, id)
    }

    /// Returns the contents to drop when the caller has the answer to a request.
    pub(super) fn take_answered(&mut self, request: u32) -> Vec<HeldContent> {
        self.by_request.remove(&request).unwrap_or_default()
    }

    /// Holds the contents of a request until the job ends, because its answer is evidence about
    /// another result.
    pub(super) fn keep_answered(&mut self, request: u32) {
        let held = self.take_answered(request);
        self.to_end.extend(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of one answer, of which a store of [`STORE_BYTES`] holds few.
    const ANSWER_BYTES: usize = 4_096;
    const STORE_BYTES: u64 = 32 << 10;

    /// Runs a request: its inputs are stored, and its output arrives. Answers are equal in pairs,
    /// and inputs come again.
    fn run_request(held: &mut HeldContents, number: u32) -> Result<ContentId, StoreError> {
        let token = Tensor::from_vec([1], vec![i64::from(number % 3)]).unwrap();
        held.put_inputs(number, &BTreeMap::from([("token".to_owned(), token)]))?;
        let mut answer = vec![0_u8; ANSWER_BYTES];
        answer[..4].copy_from_slice(&(number / 2).to_le_bytes());
        let answer = Tensor::from_vec([ANSWER_BYTES], answer).unwrap();
        let _fetching = held.hold_fetched(Some(number), answer.id());
        held.store.put_tensor(&answer)
    }

    #[test]
    fn a_job_holds_the_contents_of_the_requests_that_have_no_answer() {
        let store = Arc::new(Store::in_memory(STORE_BYTES));
        let mut held = HeldContents::new(store.clone(), Vec::new());
        let mut before = None;
        for number in 0..200 {
            let answer = run_request(&mut held, number).unwrap();
            // Its caller confirms the answer before.
            if let Some((number, answer)) = before.replace((number, answer)) {
                assert!(store.contains(&answer) && held.holds(&answer));
                drop(held.take_answered(number));
            }
        }
        assert_eq!(store.usage().memory_items, 2, "the last one is open");
        drop(held);
        let usage = store.usage();
        assert_eq!((usage.memory_items, usage.pinned_items), (0, 0));
    }

    #[test]
    fn values_of_no_single_request_stay_to_the_end() {
        let store = Arc::new(Store::in_memory(STORE_BYTES));
        let value = |value: i64| Tensor::from_vec([1], vec![value]).unwrap();
        let kept = HeldContent::put(&store, value(7).to_blob()).unwrap();
        let mut held = HeldContents::new(store.clone(), vec![kept]);
        drop(held.hold_fetched(None, store.put_tensor(&value(8)).unwrap()));
        let evidence = run_request(&mut held, 0).unwrap();
        held.keep_answered(0);
        assert!(held.holds(&evidence) && held.holds(&value(7).id()));
        assert_eq!(
            store.usage().memory_items,
            4,
            "with the input of the request"
        );
        // A model of another job that runs now has the same content.
        store.pin(value(0).id());
        drop(held);
        assert_eq!(store.usage().memory_items, 1);
    }

    #[test]
    fn a_content_that_comes_after_its_answer_leaves_with_its_fetch() {
        let store = Arc::new(Store::in_memory(STORE_BYTES));
        let mut held = HeldContents::new(store.clone(), Vec::new());
        held.put_inputs(0, &BTreeMap::new()).unwrap();
        let late = Tensor::from_vec([1], vec![9_i64]).unwrap();
        let fetching = held.hold_fetched(Some(0), late.id());
        drop(held.take_answered(0));
        store.put_tensor(&late).unwrap();
        drop(fetching);
        assert_eq!(store.usage().memory_items, 0);
    }
}
