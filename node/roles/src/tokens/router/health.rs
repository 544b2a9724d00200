//! Records for each provider of a router whether it failed lately and how fast it answered, so that
//! the router can avoid it for a time.

use std::collections::BTreeMap;

use souk_market::AccountKey;

use super::RouteFailure;
use crate::clock::Micros;

/// The most providers that a router remembers; it forgets the one that it used longest ago.
const PROVIDERS_MAX: usize = 1_024;

/// How long the router avoids a provider after its first failure, and at most.
const FAILURE_COOLING: Micros = Micros::from_seconds(2);
const FAILURE_COOLING_MAX: Micros = Micros::from_seconds(300);

/// The same for a provider whose engine has no room now: it has some again soon.
const BUSY_COOLING: Micros = Micros::from_millis(500);
const BUSY_COOLING_MAX: Micros = Micros::from_seconds(30);

/// How long no answers are continued at a provider whose engine did not continue one: its owner can
/// start another engine.
const NO_CONTINUATION: Micros = Micros::from_seconds(600);

/// How long a provider is left alone for requests of a length that it refused: its owner can start
/// another engine.
const REFUSAL: Micros = Micros::from_seconds(600);

/// The wrong refusals without a whole answer between them, after which a provider is left alone for
/// all requests.
const REFUSALS_MAX: u32 = 3;

/// The share of a new measurement in the average: a quarter.
const AVERAGE_SHARE: u64 = 4;

/// The providers that a router has used.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthTable(BTreeMap<AccountKey, ProviderHealth>);

/// What is known of one provider.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProviderHealth {
    used_at: Micros,
    /// The failures since the last whole answer.
    failures: u32,
    /// Until when it is left alone.
    pub(super) cools_until: Micros,
    /// The refusals since the last whole answer of requests that another provider then answered.
    refusals: u32,
    /// The shortest of these requests, in tokens, and until when such ones go to others.
    refuses: Option<(u64, Micros)>,
    /// Until when it continues no answers.
    continues_from: Micros,
    /// The time to the first text.
    pub(super) first_text: Option<Micros>,
    /// The time for a thousand tokens.
    pub(super) thousand_tokens: Option<Micros>,
}

impl ProviderHealth {
    /// Returns whether it did not fail lately.
    pub(super) fn is_healthy(&self, now: Micros) -> bool {
        self.cools_until <= now
    }

    /// Returns whether a request of `tokens` tokens can go to it.
    pub(super) fn is_healthy_for(&self, now: Micros, tokens: u64) -> bool {
        self.left_alone_until(tokens) <= now
    }

    /// Returns until when the router avoids it for requests of `tokens` tokens.
    pub(super) fn left_alone_until(&self, tokens: u64) -> Micros {
        let refuses = self.refuses.filter(|(from, _)| tokens >= *from);
        refuses.map_or(self.cools_until, |(_, until)| until.max(self.cools_until))
    }

    /// Returns whether its engine may continue answers.
    pub(super) fn can_continue(&self, now: Micros) -> bool {
        self.continues_from <= now
    }
}

impl HealthTable {
    /// Returns what is known of a provider.
    pub(super) fn find(&self, provider: AccountKey) -> ProviderHealth {
        self.0.get(&provider).copied().unwrap_or_default()
    }

    /// Returns the providers that the router now avoids for requests of this many tokens.
    pub(super) fn iter_left_alone(
        &self,
        now: Micros,
        tokens: u64,
    ) -> impl Iterator<Item = AccountKey> {
        let left = self.0.iter();
        let left = left.filter(move |(_, health)| !health.is_healthy_for(now, tokens));
        left.map(|(provider, _)| *provider)
    }

    /// Records a failure. Failures that arrive while the router already avoids the provider have
    /// the same cause, and do not extend the time.
    pub(super) fn on_failed(&mut self, now: Micros, provider: AccountKey, failure: RouteFailure) {
        let health = self.touch(now, provider);
        let (first, most) = match failure {
            RouteFailure::Failed => (FAILURE_COOLING, FAILURE_COOLING_MAX),
            RouteFailure::Busy => (BUSY_COOLING, BUSY_COOLING_MAX),
            RouteFailure::NotContinued => {
                health.continues_from = now.plus(NO_CONTINUATION);
                return;
            }
            RouteFailure::Refused | RouteFailure::TabOver | RouteFailure::OtherProvider => return,
        };
        if health.is_healthy(now) {
            let doubled = 1_u64 << health.failures.min(20);
            let cooling = Micros(first.0.saturating_mul(doubled).min(most.0));
            health.cools_until = now.plus(cooling);
            health.failures = health.failures.saturating_add(1);
        }
    }

    pub(super) fn on_first_text(&mut self, now: Micros, provider: AccountKey, after: Micros) {
        let health = self.touch(now, provider);
        health.first_text = Some(average(health.first_text, after));
    }

    /// Records that a provider refused a request of `asked` tokens which another one then answered.
    pub(super) fn on_wrong_refusal(&mut self, now: Micros, provider: AccountKey, asked: u64) {
        let health = self.touch(now, provider);
        let before = health.refuses.filter(|(_, until)| *until > now);
        let from = before.map_or(asked, |(from, _)| from.min(asked));
        health.refuses = Some((from, now.plus(REFUSAL)));
        health.refusals = health.refusals.saturating_add(1);
        if health.refusals >= REFUSALS_MAX {
            self.on_failed(now, provider, RouteFailure::Failed);
        }
    }

    /// Notes a whole answer to a request of so many tokens, and the time for a thousand tokens of
    /// the answer if it had enough of them.
    pub(super) fn on_answered(
        &mut self,
        now: Micros,
        provider: AccountKey,
        asked: u64,
        thousand_tokens: Option<Micros>,
    ) {
        let health = self.touch(now, provider);
        (health.failures, health.refusals, health.cools_until) = (0, 0, Micros(0));
        health.refuses = health.refuses.filter(|(from, _)| asked < *from);
        if let Some(took) = thousand_tokens {
            health.thousand_tokens = Some(average(health.thousand_tokens, took));
        }
    }

    fn touch(&mut self, now: Micros, provider: AccountKey) -> &mut ProviderHealth {
        if self.0.len() >= PROVIDERS_MAX && !self.0.contains_key(&provider) {
            let oldest = self.0.iter().min_by_key(|(_, health)| health.used_at);
            if let Some(oldest) = oldest.map(|(provider, _)| *provider) {
                self.0.remove(&oldest);
            }
        }
        let health = self.0.entry(provider).or_default();
        health.used_at = now;
        health
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn average(before: Option<Micros>, now: Micros) -> Micros {
    match before {
        None => now,
        Some(Micros(before)) => Micros(before - before / AVERAGE_SHARE + now.0 / AVERAGE_SHARE),
    }
}
