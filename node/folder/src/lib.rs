//! Reads and writes the files of a node's folder: its key, its market, its role with limits and
//! prices, and the logs of facts (recorded steps) from which it continues after a crash. Also
//! parses contacts and invitations, the lines of text that name a peer or a market, and has the
//! clock that stamps the files.
//!
//! The modules here only know these files; other crates act on them. They know keys, peer ids and
//! addresses, but neither a network nor a device, so that whatever needs a file can be built beside
//! both.
//!
//! For example, a node is reached by its key and an address, which people pass on as one line:
//!
//! ```
//! use souk_folder::contact::Contact;
//! use souk_folder::key::NodeKey;
//!
//! let account = NodeKey::generate().public_key();
//! let addresses = vec!["/ip4/192.0.2.7/tcp/4001".parse()?];
//! let contact = Contact { account, addresses };
//! let line = contact.to_text().ok_or("it has an address")?;
//! assert_eq!(Contact::parse(&line)?, contact);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod clock;
pub mod config;
pub mod contact;
pub mod durable_file;
pub mod fact_writer;
pub mod facts;
pub mod invitation;
pub mod key;
pub mod limits;
pub mod market_file;
pub mod price;
pub mod pricing;
