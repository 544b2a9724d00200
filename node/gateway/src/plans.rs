//! Remembers the latest plans by their hash, so that a client can submit a job under a plan that it
//! saw.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::job_body::JobBody;

/// Plans that the gateway remembers; clients submit a plan soon or never.
const PLANS_MAX: usize = 256;

/// A plan with its request.
#[derive(Clone, Debug)]
pub struct StoredPlan {
    /// The job that was planned.
    pub body: JobBody,
    /// The plan as JSON.
    pub plan: Value,
}

/// The latest plans, by hash.
#[derive(Debug, Default)]
pub struct Plans {
    plans: Mutex<(BTreeMap<String, StoredPlan>, VecDeque<String>)>,
}

impl Plans {
    /// Returns the plan of this hash if the gateway still remembers it.
    pub fn get(&self, hash: &str) -> Option<StoredPlan> {
        let made = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        made.0.get(hash).cloned()
    }

    /// Remembers a plan, and forgets the oldest if there are too many.
    pub fn add_plan(&self, hash: String, plan: StoredPlan) {
        let mut made = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
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
