//! Sets how much of the machine's memory a provider's caches can hold: more if much memory is free,
//! less if other processes need it.

use std::time::Duration;

use souk_host::system;
use souk_memory::allowance::Allowance;
use souk_sandbox::device::group::GROUP_BYTES_MAX;

use super::Provider;

/// How often the provider checks the machine's memory.
const PERIOD: Duration = Duration::from_secs(5);

/// Memory that the caches should leave free: a gibibyte, as for spare sandboxes.
const RESERVE_BYTES: u64 = 1 << 30;

/// The most and the least content kept in memory; the least suffices for one small model.
pub(super) const STORE_BYTES_MAX: u64 = 2 << 30;
const STORE_BYTES_MIN: u64 = 64 << 20;

/// Adjusts the limits to the machine's free memory, for ever.
pub(super) async fn adjust_forever(provider: &Provider) {
    loop {
        if let Some(free) = system::memory_free_bytes() {
            fit_limits(provider, free);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn fit_limits(provider: &Provider, free: u64) {
    let allowance = |most_bytes| Allowance {
        reserve_bytes: RESERVE_BYTES,
        least_bytes: STORE_BYTES_MIN,
        most_bytes,
    };
    let store = provider.tensors.store();
    let usage = store.usage();
    let limit = allowance(STORE_BYTES_MAX).limit_bytes(usage.memory_bytes, free);
    if limit != usage.memory_bytes_max {
        tracing::debug!(limit, free, "set the memory limit of contents");
        store.set_memory_limit(limit);
    }
    if let Some(executor) = provider.engine.as_executor() {
        executor.fit_memory_limit(|held| allowance(GROUP_BYTES_MAX).limit_bytes(held, free));
    }
}
