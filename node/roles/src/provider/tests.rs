//! A provider's core against a real exchange, a disk and a device that are played.

mod feeding;
mod looks;
mod money;
mod random;
mod scripts;
mod stops;
pub(crate) mod world;
