//! The decisions of a node's roles: synchronous state machines, `apply(now, event) -> effects`.
//!
//! A core knows no clock, thread, lock, network, disk, randomness or device. It receives events and
//! returns effects as data; its driver must carry them out and report the answers. Two drivers run
//! the same cores: a node's shells, with libp2p and files, and the seeded simulator, with neither.
//!
//! For example, a core decides which peers can fetch a content:
//!
//! ```
//! use std::collections::BTreeSet;
//! use std::sync::Arc;
//!
//! use souk_market::{AccountKey, JobId, SigningKey};
//! use souk_memory::ContentId;
//! use souk_roles::access::{Grants, Scope};
//!
//! let [buyer, seller, stranger] = [1, 2, 3].map(|seed| {
//!     AccountKey::from(&SigningKey::from_bytes(&[seed; 32]))
//! });
//! let job = Scope { buyer, job: JobId([7; 32]) };
//! let weights = ContentId::for_content(b"weights");
//!
//! let mut grants = Grants::default();
//! grants.begin_lease(job);
//! grants.grant_contents(job, &Arc::new(BTreeSet::from([buyer, seller])), [weights]);
//! assert!(grants.may_have(&job, seller, &weights));
//! // To know its hash gives nobody a content.
//! assert!(!grants.may_have(&job, stranger, &weights));
//! ```

#![forbid(unsafe_code)]
#![warn(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::float_arithmetic
)]

pub mod access;
pub mod clock;
pub mod effect;
pub mod job;
pub mod lease;
pub mod market;
pub mod provider;
pub mod session;
pub mod tokens;
pub mod train;
pub mod validator;
