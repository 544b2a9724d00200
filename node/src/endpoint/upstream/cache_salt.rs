//! Keeps the cached prompts of different tabs apart at an engine. An engine that has read the
//! beginning of a prompt before answers sooner. If all its requests shared one cache, a buyer could
//! learn the prompts of others by the time to the first text. So each request has the salt of its
//! tab in a field that vLLM and others know, if the engine takes it.

use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

use serde_json::json;
use souk_market::LeaseId;
use souk_roles::tokens::text::{Message, Role, TextRequest};
use tokio::time::{Instant, timeout_at};

use super::continuation::PROBE_MAX;
use super::{CACHE_SALT, Upstream};

/// The salt of the probe, which no tab has.
const PROBE_SALT: &str = "probe";

impl Upstream {
    /// Returns the salt of a tab, which no other tab has and no buyer can guess; none if the engine
    /// was not seen to take one.
    pub(super) fn cache_salt(&self, tab: LeaseId) -> Option<String> {
        let takes_salt = self.takes_salt.load(Ordering::Relaxed);
        takes_salt.then(|| format!("{:016x}", self.salt_secret.hash_one(tab.0)))
    }

    /// Notes whether the engine takes the field with the salt. An engine that refuses it, or does
    /// not answer soon, gets none.
    pub(in crate::endpoint) async fn probe_cache_salt(&self, model: &str) {
        let request = TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: "Name a letter.".to_owned(),
            }],
            tokens_max: 1,
            ..TextRequest::default()
        };
        let mut body = self.to_body(model, &request);
        body[CACHE_SALT] = json!(PROBE_SALT);
        let answered = timeout_at(Instant::now() + PROBE_MAX, self.count_prompt(body)).await;
        let takes_salt = matches!(answered, Ok(Ok(_)));
        self.takes_salt.store(takes_salt, Ordering::Relaxed);
    }
}
