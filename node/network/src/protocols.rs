//! Defines two protocols between nodes: [`lease`], by which buyers and providers work together, and
//! [`market`], by which any peer asks a validator (a node that runs the market). Also exports the
//! modules of `souk_roles` with the contents of the market's messages.

pub mod lease;
pub mod market;

pub use souk_roles::market::{demands, regions, roster, statement, unsuitable};
