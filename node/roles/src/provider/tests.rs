//! Tests a provider's core against a real exchange, with a simulated disk and device.

mod feeding;
mod looks;
mod money;
mod random;
mod scripts;
mod stops;
pub(crate) mod world;
