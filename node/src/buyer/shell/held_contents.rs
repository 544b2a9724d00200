//! The inputs and outputs of a job's requests in the buyer's store, which has a limit and evicts
//! nothing by itself.
//!
//! A session drops those of a request once its caller has the answer, because a session that loses
//! a provider is over. Any other job keeps them to its end: another provider can have to compute a
//! request again.

use std::collections::BTreeMap;
use std::sync::Arc;

use souk_memory::{ContentId, HeldContent, Store, StoreError, Tensor};

/// What a job holds in the store. Dropping it drops the contents.
pub(in crate::buyer) struct HeldContents {
    store: Arc<Store>,
    is_session: bool,
    by_request: BTreeMap<u32, Vec<HeldContent>>,
    /// What was fetched and belongs to no request yet. Several requests can have equal outputs.
    fetched: BTreeMap<ContentId, Vec<HeldContent>>,
    /// The values that the job computed in an earlier life.
    values: Vec<HeldContent>,
}

impl HeldContents {
    pub(in crate::buyer) fn new(store: Arc<Store>, is_session: bool) -> HeldContents {
        HeldContents {
            store,
            is_session,
            by_request: BTreeMap::new(),
            fetched: BTreeMap::new(),
            values: Vec::new(),
        }
    }

    /// Stores values that the job computed in an earlier life.
    pub(in crate::buyer) fn put_values(&mut self, values: &[Tensor]) -> Result<(), StoreError> {
        for value in values {
            self.values
                .push(HeldContent::put(&self.store, value.to_blob())?);
        }
        Ok(())
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

    /// Returns whether a content is an input or an output of a request without an answer.
    pub(super) fn holds(&self, id: &ContentId) -> bool {
        let mut held = self.by_request.values().flatten();
        self.fetched.contains_key(id) || held.any(|held| held.id() == *id)
    }

    /// Holds a content that is about to be fetched.
    pub(super) fn hold_fetched(&mut self, id: ContentId) {
        let held = HeldContent::for_id(&self.store, id);
        self.fetched.entry(id).or_default().push(held);
    }

    /// Notes that a fetched content is of use as long as this request has no answer.
    pub(super) fn assign(&mut self, request: u32, id: &ContentId) {
        if let Some(held) = self.fetched.get_mut(id) {
            let one = held.pop();
            if held.is_empty() {
                self.fetched.remove(id);
            }
            self.by_request.entry(request).or_default().extend(one);
        }
    }

    /// Returns the contents to drop when the caller has the answer to a request.
    pub(super) fn take_answered(&mut self, request: u32) -> Vec<HeldContent> {
        match self.is_session {
            true => self.by_request.remove(&request).unwrap_or_default(),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of one answer, of which a store of [`STORE_BYTES`] holds few.
    const ANSWER_BYTES: usize = 4_096;
    const STORE_BYTES: u64 = 32 << 10;

    /// Runs a request: its inputs are stored, and its output arrives. Answers are equal in pairs,
    /// and tokens come again.
    fn run_request(held: &mut HeldContents, number: u32) -> Result<ContentId, StoreError> {
        let token = Tensor::from_vec([1], vec![i64::from(number % 3)]).unwrap();
        held.put_inputs(number, &BTreeMap::from([("token".to_owned(), token)]))?;
        let mut answer = vec![0_u8; ANSWER_BYTES];
        answer[..4].copy_from_slice(&(number / 2).to_le_bytes());
        let answer = Tensor::from_vec([ANSWER_BYTES], answer).unwrap();
        held.hold_fetched(answer.id());
        held.store.put_tensor(&answer)
    }

    #[test]
    fn a_session_keeps_nothing_of_the_requests_that_are_answered() {
        let store = Arc::new(Store::in_memory(STORE_BYTES));
        let mut held = HeldContents::new(store.clone(), true);
        let mut before = None;
        for number in 0..200 {
            let answer = run_request(&mut held, number).unwrap();
            // Its caller confirms the answer before.
            if let Some((number, answer)) = before.replace((number, answer)) {
                held.assign(number, &answer);
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
    fn the_values_of_an_earlier_life_are_dropped_at_the_end_of_the_job() {
        let store = Arc::new(Store::in_memory(STORE_BYTES));
        let value = |byte: u8| Tensor::from_vec([ANSWER_BYTES], vec![byte; ANSWER_BYTES]).unwrap();
        for _ in 0..3 {
            let mut held = HeldContents::new(store.clone(), false);
            held.put_values(&[value(1), value(2)]).unwrap();
            assert!(store.contains(&value(1).id()) && store.contains(&value(2).id()));
        }
        assert_eq!(store.usage().memory_items, 0);
        let mut held = HeldContents::new(store.clone(), false);
        let many: Vec<Tensor> = (0..9).map(value).collect();
        held.put_values(&many).unwrap_err();
        drop(held);
        assert_eq!(store.usage().memory_items, 0);
    }

    #[test]
    fn a_job_that_can_repeat_requests_keeps_them_to_its_end() {
        let store = Arc::new(Store::in_memory(STORE_BYTES));
        let mut held = HeldContents::new(store.clone(), false);
        for number in 0..4 {
            let answer = run_request(&mut held, number).unwrap();
            held.assign(number, &answer);
            assert!(held.take_answered(number).is_empty());
        }
        assert_eq!(
            store.usage().memory_items,
            5,
            "three tokens and two answers"
        );
        // A model of another job that runs now has the same content.
        let model = Tensor::from_vec([1], vec![0_i64]).unwrap().id();
        store.pin(model);
        drop(held);
        assert_eq!(store.usage().memory_items, 1);
        assert!(store.contains(&model));
    }
}
