//! The plans that were made lately.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::job_body::JobBody;

/// Plans remembered; a plan is submitted soon or not at all.
const PLANS_MAX: usize = 256;

/// A plan that was made.
#[derive(Clone, Debug)]
pub struct MadePlan {
    /// What was asked.
    pub body: JobBody,
    /// What came of it.
    pub plan: Value,
}

/// Plans that were made lately, by hash.
#[derive(Debug, Default)]
pub struct Plans {
    made: Mutex<(BTreeMap<String, MadePlan>, VecDeque<String>)>,
}

impl Plans {
    /// The plan of that hash, if it was made here lately.
    pub fn get(&self, hash: &str) -> Option<MadePlan> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.0.get(hash).cloned()
    }

    /// Remembers one.
    pub fn put(&self, hash: String, plan: MadePlan) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, order) = &mut *made;
        if all.insert(hash.clone(), plan).is_none() {
            order.push_back(hash);
        }
        while order.len() > PLANS_MAX {
            let oldest = order.pop_front().unwrap_or_default();
            all.remove(&oldest);
        }
    }
}
