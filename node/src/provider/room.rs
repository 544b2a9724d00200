//! How much of the machine's memory a provider's caches hold: more while it has some to spare, less
//! when others want it.

use std::time::Duration;

use souk_host::system;
use souk_memory::allowance::Allowance;

use super::Provider;
use crate::device::group::GROUP_BYTES_MAX;

/// How often the machine is looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// What of the machine is left alone: a gibibyte, as for processes that wait for a lease.
const RESERVE_BYTES: u64 = 1 << 30;

/// Content kept in memory: the most, and what one small model takes.
pub(super) const STORE_BYTES_MAX: u64 = 2 << 30;
const STORE_BYTES_MIN: u64 = 64 << 20;

/// Keeps the limits at what the machine has for them, for ever.
pub(super) async fn keep(provider: &Provider) {
    loop {
        if let Some(free) = system::memory_free_bytes() {
            fit(provider, free);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn fit(provider: &Provider, free: u64) {
    let allowance = |most_bytes| Allowance {
        reserve_bytes: RESERVE_BYTES,
        least_bytes: STORE_BYTES_MIN,
        most_bytes,
    };
    let store = provider.tensors.store();
    let usage = store.usage();
    let limit = allowance(STORE_BYTES_MAX).limit(usage.memory_bytes, free);
    if limit != usage.memory_bytes_max {
        tracing::debug!(limit, free, "content may have this much memory");
        store.resize(limit);
    }
    provider
        .executor
        .fit(|held| allowance(GROUP_BYTES_MAX).limit(held, free));
}
