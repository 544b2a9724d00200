//! Contains small helpers for the simulated market's accounts: the resources of the devices that
//! they trade, random keys, and lists of the latest few items.

use souk_market::{Dtype, KindCode, Resources, SigningKey, Throughput};

use super::random::Random;

/// Units of each device.
pub const CAPACITY: u32 = 2;

/// Returns the resources of every device.
pub fn device_resources() -> Resources {
    Resources {
        kind: KindCode(2),
        memory_bytes: 24 << 30,
        memory_bandwidth: 900 << 30,
        throughput: Throughput::default().with(Dtype::F32, 80_000_000),
        ..Resources::default()
    }
}

/// Adds an item to a list of the latest few.
pub fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == 16 {
        list.remove(0);
    }
    list.push(item);
}

/// Returns a random key of the run.
pub fn key(random: &mut Random) -> SigningKey {
    let mut seed = [0; 32];
    for part in seed.chunks_mut(8) {
        part.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    SigningKey::from_bytes(&seed)
}
