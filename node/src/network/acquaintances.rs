//! Whom a node has heard of: checked profiles, and addresses that outlive a restart.
//!
//! Pure but for its file: what a gossiped message is worth is decided here, from its bytes, who
//! passed it on and the time.

use std::collections::HashMap;
use std::path::PathBuf;

use libp2p::PeerId;
use serde::{Deserialize, Serialize};
use souk_market::AccountKey;

use crate::config::{self, FORMAT};
use crate::contact::Contact;
use crate::key;
use crate::profile::{Profile, ProfileFault, SignedProfile};

/// Providers remembered; beyond them newcomers are not until others have expired.
const PROFILES_MAX: usize = 4096;

/// Profiles one peer may pass on within a window: several times what 1,000 providers say in one.
const PASSED_ON_MAX: u32 = 256;

/// The window, in milliseconds.
const WINDOW_MS: u64 = 10_000;

/// Peers whose rate is remembered; the connection limit is lower.
const PEERS_MAX: usize = 4096;

/// What to do with a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Worth {
    /// It holds and is new: pass it on.
    New(Box<Profile>),
    /// It holds, but a later one is known.
    Idle,
    /// Whoever passes it on passes on too much: it was not looked at.
    Flood,
    /// It does not hold: whoever passed it on did not check it.
    Wrong,
}

/// Everything a node has heard.
#[derive(Debug, Default)]
pub(super) struct Acquaintances {
    profiles: HashMap<AccountKey, Profile>,
    passed_on: HashMap<PeerId, (u64, u32)>,
    file: Option<PathBuf>,
}

/// The file of addresses.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    format: u32,
    contacts: Vec<Contact>,
}

impl Acquaintances {
    /// Those of a former run, whose addresses are in `file`.
    pub(super) fn open(file: Option<PathBuf>) -> (Acquaintances, Vec<Contact>) {
        let read = file
            .as_ref()
            .and_then(|file| match config::read::<Known>(file) {
                Ok(known) => Some(known.contacts),
                Err(config::ConfigError::Missing { .. }) => None,
                Err(error) => {
                    tracing::warn!(%error, "the peers known before are forgotten");
                    None
                }
            });
        let acquaintances = Acquaintances {
            file,
            ..Acquaintances::default()
        };
        (acquaintances, read.unwrap_or_default())
    }

    /// Judges a message that `from` passed on, and remembers what it says.
    pub(super) fn judge(&mut self, from: PeerId, bytes: &[u8], now_ms: u64) -> Worth {
        if !self.may_pass_on(from, now_ms) {
            return Worth::Flood;
        }
        let Ok(signed) = postcard::from_bytes::<SignedProfile>(bytes) else {
            return Worth::Wrong;
        };
        let profile = match signed.verify(now_ms) {
            Ok(profile) => profile,
            // Clocks differ: whoever passed it on may have found it to hold.
            Err(ProfileFault::Expired(_) | ProfileFault::Early(_)) => return Worth::Idle,
            Err(fault) => {
                tracing::debug!(peer = %from, %fault, "a profile is not believed");
                return Worth::Wrong;
            }
        };
        let known = self.profiles.get(&profile.account);
        if known.is_some_and(|known| known.issued_ms >= profile.issued_ms) {
            return Worth::Idle;
        }
        if known.is_none() && self.profiles.len() >= PROFILES_MAX {
            self.profiles
                .retain(|_, profile| profile.expires_ms > now_ms);
            if self.profiles.len() >= PROFILES_MAX {
                return Worth::Idle;
            }
        }
        self.profiles.insert(profile.account, profile.clone());
        Worth::New(Box::new(profile))
    }

    /// The profiles that hold at this moment.
    pub(super) fn profiles(&self, now_ms: u64) -> Vec<Profile> {
        let holds = |profile: &&Profile| profile.expires_ms > now_ms;
        self.profiles.values().filter(holds).cloned().collect()
    }

    /// Writes the addresses of the peers that are known.
    pub(super) fn save(&self, known: &HashMap<PeerId, Vec<libp2p::Multiaddr>>) {
        let Some(file) = &self.file else {
            return;
        };
        let contact = |(peer, addresses): (&PeerId, &Vec<libp2p::Multiaddr>)| {
            let account = key::account_of(peer)?;
            (!addresses.is_empty()).then(|| Contact {
                account,
                addresses: addresses.clone(),
            })
        };
        let mut contacts: Vec<Contact> = known.iter().filter_map(contact).collect();
        contacts.sort_by_key(|contact| contact.account);
        if let Err(error) = config::write(
            file,
            &Known {
                format: FORMAT,
                contacts,
            },
        ) {
            tracing::warn!(%error, "the peers that are known were not written");
        }
    }

    fn may_pass_on(&mut self, from: PeerId, now_ms: u64) -> bool {
        if self.passed_on.len() >= PEERS_MAX {
            self.passed_on
                .retain(|_, (since, _)| now_ms < *since + WINDOW_MS);
        }
        let (since, count) = self.passed_on.entry(from).or_insert((now_ms, 0));
        if now_ms >= *since + WINDOW_MS {
            (*since, *count) = (now_ms, 0);
        }
        *count += 1;
        *count <= PASSED_ON_MAX
    }
}

#[cfg(test)]
mod tests {
    use souk_market::Resources;

    use super::*;
    use crate::fuzzed;
    use crate::key::NodeKey;
    use crate::profile::LIFE_MS;

    const NOW: u64 = 1_000_000_000;

    fn message(key: &NodeKey, signer: &NodeKey, issued_ms: u64) -> Vec<u8> {
        let profile = Profile {
            account: AccountKey(key.public()),
            addresses: Vec::new(),
            resources: Resources::default(),
            issued_ms,
            expires_ms: issued_ms + LIFE_MS,
        };
        postcard::to_allocvec(&profile.sign(signer).unwrap()).unwrap()
    }

    #[test]
    fn a_profile_is_passed_on_once_and_only_if_it_holds() {
        let mut heard = Acquaintances::default();
        let (key, other) = (NodeKey::generate(), NodeKey::generate());
        let from = other.peer_id();
        assert_eq!(
            heard.judge(from, &message(&key, &other, NOW), NOW),
            Worth::Wrong
        );
        assert_eq!(heard.judge(from, b"nonsense", NOW), Worth::Wrong);
        let right = message(&key, &key, NOW);
        assert!(matches!(heard.judge(from, &right, NOW), Worth::New(_)));
        assert_eq!(heard.judge(from, &right, NOW), Worth::Idle);
        let older = message(&key, &key, NOW - 1);
        assert_eq!(
            heard.judge(from, &older, NOW),
            Worth::Idle,
            "the later word counts"
        );
        assert_eq!(heard.profiles(NOW).len(), 1);
        assert!(heard.profiles(NOW + LIFE_MS).is_empty(), "it has expired");
    }

    #[test]
    fn damaged_profiles_do_no_harm_and_none_is_believed() {
        let key = NodeKey::generate();
        let right = message(&key, &key, NOW);
        fuzzed::try_messages::<SignedProfile>(16, &[postcard::from_bytes(&right).unwrap()]);
        let mut damage = fuzzed::Damage::new(17);
        for _ in 0..2_000 {
            let damaged = damage.of(&right);
            let mut heard = Acquaintances::default();
            let worth = heard.judge(key.peer_id(), &damaged, NOW);
            // Bytes after the message are not part of it.
            let same = damaged.starts_with(&right);
            assert_eq!(matches!(worth, Worth::New(_)), same, "{damaged:?}");
        }
    }

    #[test]
    fn who_passes_on_too_much_is_not_listened_to_for_a_while() {
        let mut heard = Acquaintances::default();
        let from = NodeKey::generate().peer_id();
        for _ in 0..PASSED_ON_MAX {
            assert_eq!(heard.judge(from, b"nonsense", NOW), Worth::Wrong);
        }
        let key = NodeKey::generate();
        let right = message(&key, &key, NOW);
        assert_eq!(heard.judge(from, &right, NOW), Worth::Flood);
        let other = NodeKey::generate().peer_id();
        assert!(matches!(heard.judge(other, &right, NOW), Worth::New(_)));
        let later = message(&key, &key, NOW + 1);
        assert!(matches!(
            heard.judge(from, &later, NOW + WINDOW_MS),
            Worth::New(_)
        ));
    }

    #[test]
    fn addresses_outlive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers.json");
        let (first, none) = Acquaintances::open(Some(file.clone()));
        assert!(none.is_empty());
        let key = NodeKey::generate();
        let addresses = vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()];
        first.save(&[(key.peer_id(), addresses.clone())].into());
        let (_, known) = Acquaintances::open(Some(file));
        assert_eq!(
            known,
            [Contact {
                account: key.public(),
                addresses
            }]
        );
    }
}
