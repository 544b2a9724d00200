//! Stores the peers that a node has heard of: providers' profiles that it has checked, and
//! addresses, which survive a restart. The swarm's task passes each gossiped message to it, and it
//! decides whether the node forwards the message.
//!
//! All but its file is pure: it judges a gossiped message by its bytes, its forwarder and the time.
//!
//! Anyone can make keys, so one machine must not fill the table with profiles. If the table is
//! full, a new profile replaces the oldest one of the largest group: the profiles with one address
//! prefix, or else those that one peer forwarded. So a machine with many keys, or a peer that
//! forwards many profiles, gets only the places that others leave.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::PathBuf;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use souk_folder::config::{self, FORMAT};
use souk_folder::contact::Contact;
use souk_folder::key;
use souk_market::AccountKey;

use crate::profile::{Profile, ProfileFault, SignedProfile};

/// Profiles remembered; beyond that each newcomer takes the place of another.
const PROFILES_MAX: usize = 4096;

/// Bytes of an address that the machines of one network share: a block that one customer gets.
const PREFIX_4_BYTES: usize = 3;
const PREFIX_6_BYTES: usize = 6;

/// Profiles that one peer can forward within a window: several times as many as 1,000 providers
/// publish in one.
const PASSED_ON_MAX: u32 = 256;

/// The window, in milliseconds.
const WINDOW_MS: u64 = 10_000;

/// Peers whose rate is remembered; the connection limit is lower.
const PEERS_MAX: usize = 4096;

/// The value of a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Worth {
    /// It is valid and new: forward it.
    New(Box<Profile>),
    /// It is valid, but a later one is known.
    Idle,
    /// Its forwarder sends too many: it was not examined.
    Flood,
    /// It is invalid: its forwarder did not check it.
    Wrong,
}

/// Everything a node has heard.
#[derive(Debug, Default)]
pub(super) struct Acquaintances {
    profiles: HashMap<AccountKey, Acquaintance>,
    passed_on: HashMap<PeerId, (u64, u32)>,
    file: Option<PathBuf>,
}

/// A profile, and the properties that it shares with others.
#[derive(Debug)]
struct Acquaintance {
    profile: Profile,
    from: PeerId,
    place: Option<Prefix>,
}

/// The beginning of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Prefix {
    V4([u8; PREFIX_4_BYTES]),
    V6([u8; PREFIX_6_BYTES]),
}

impl Acquaintance {
    fn new(profile: Profile, from: PeerId) -> Acquaintance {
        let place = profile.addresses.iter().find_map(address_prefix);
        Acquaintance {
            profile,
            from,
            place,
        }
    }
}

/// The file of addresses.
#[derive(Debug, Serialize, Deserialize)]
struct AddressFile {
    format: u32,
    contacts: Vec<Contact>,
}

impl Acquaintances {
    /// Opens the addresses of an earlier run, in `file`, and returns them.
    pub(super) fn load_or_default(file: Option<PathBuf>) -> (Acquaintances, Vec<Contact>) {
        let read = file
            .as_ref()
            .and_then(|file| match config::read::<AddressFile>(file) {
                Ok(known) => Some(known.contacts),
                Err(config::ConfigError::Missing { .. }) => None,
                Err(error) => {
                    tracing::warn!(%error, "could not read the stored peer addresses");
                    None
                }
            });
        let acquaintances = Acquaintances {
            file,
            ..Acquaintances::default()
        };
        (acquaintances, read.unwrap_or_default())
    }

    /// Judges a message that `from` forwarded, and remembers its profile.
    pub(super) fn judge_message(&mut self, from: PeerId, bytes: &[u8], now_ms: u64) -> Worth {
        if !self.may_pass_on(from, now_ms) {
            return Worth::Flood;
        }
        let Ok(signed) = postcard::from_bytes::<SignedProfile>(bytes) else {
            return Worth::Wrong;
        };
        let profile = match signed.verify(now_ms) {
            Ok(profile) => profile,
            // Clocks differ, so the profile can have been valid for its forwarder.
            Err(ProfileFault::Expired(_) | ProfileFault::Early(_)) => return Worth::Idle,
            Err(fault) => {
                tracing::debug!(peer = %from, %fault, "rejected an invalid profile");
                return Worth::Wrong;
            }
        };
        let known = self.profiles.get(&profile.account);
        if known.is_some_and(|known| known.profile.issued_ms >= profile.issued_ms) {
            return Worth::Idle;
        }
        let heard = Acquaintance::new(profile.clone(), from);
        if known.is_none() && !self.make_room(&heard, now_ms) {
            return Worth::Idle;
        }
        self.profiles.insert(profile.account, heard);
        Worth::New(Box::new(profile))
    }

    /// Finds a place for a newcomer, if necessary another profile's; returns whether it succeeded.
    fn make_room(&mut self, newcomer: &Acquaintance, now_ms: u64) -> bool {
        if self.profiles.len() < PROFILES_MAX {
            return true;
        }
        self.profiles
            .retain(|_, heard| heard.profile.expires_ms > now_ms);
        if self.profiles.len() < PROFILES_MAX {
            return true;
        }
        let by_place = self.oldest_in_crowd(newcomer, |heard| heard.place);
        let crowded = by_place.or_else(|| self.oldest_in_crowd(newcomer, |heard| Some(heard.from)));
        let Some(oldest) = crowded else {
            return false;
        };
        self.profiles.remove(&oldest);
        true
    }

    /// Returns the oldest profile of the largest group that shares a property, if the group has at
    /// least two more members than the newcomer's has now; this margin keeps places from moving to
    /// and fro.
    fn oldest_in_crowd<T: Copy + Eq + Hash>(
        &self,
        newcomer: &Acquaintance,
        common: impl Fn(&Acquaintance) -> Option<T>,
    ) -> Option<AccountKey> {
        let mut counts = HashMap::<T, usize>::new();
        for shared in self.profiles.values().filter_map(&common) {
            *counts.entry(shared).or_default() += 1;
        }
        let own = common(newcomer).and_then(|own| counts.get(&own).copied());
        let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if count < own.unwrap_or(0) + 2 {
            return None;
        }
        let all = self.profiles.values();
        let alike = all.filter(|heard| common(heard) == Some(most));
        let oldest = alike.min_by_key(|heard| (heard.profile.issued_ms, heard.profile.account));
        oldest.map(|heard| heard.profile.account)
    }

    /// Returns the profiles that are valid now.
    pub(super) fn valid_profiles(&self, now_ms: u64) -> Vec<Profile> {
        let all = self.profiles.values().map(|heard| &heard.profile);
        let holds = |profile: &&Profile| profile.expires_ms > now_ms;
        all.filter(holds).cloned().collect()
    }

    /// Writes the addresses of the known peers.
    pub(super) fn save_addresses(&self, known: &HashMap<PeerId, Vec<Multiaddr>>) {
        let Some(file) = &self.file else {
            return;
        };
        let contact = |(peer, addresses): (&PeerId, &Vec<Multiaddr>)| {
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
            &AddressFile {
                format: FORMAT,
                contacts,
            },
        ) {
            tracing::warn!(%error, "could not write the peer addresses");
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

fn address_prefix(address: &Multiaddr) -> Option<Prefix> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(Prefix::V4(*ip.octets().first_chunk()?)),
        Protocol::Ip6(ip) => Some(Prefix::V6(*ip.octets().first_chunk()?)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use souk_folder::key::NodeKey;
    use souk_market::Resources;
    use souk_node_testing::fuzzed;

    use super::*;
    use crate::profile::LIFE_MS;

    const NOW: u64 = 1_000_000_000;

    fn message(key: &NodeKey, signer: &NodeKey, issued_ms: u64) -> Vec<u8> {
        message_at(&[], key, signer, issued_ms)
    }

    fn message_at(at: &[Multiaddr], key: &NodeKey, signer: &NodeKey, issued_ms: u64) -> Vec<u8> {
        let profile = Profile {
            account: AccountKey(key.public_key()),
            addresses: at.to_vec(),
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
            heard.judge_message(from, &message(&key, &other, NOW), NOW),
            Worth::Wrong
        );
        assert_eq!(heard.judge_message(from, b"nonsense", NOW), Worth::Wrong);
        let right = message(&key, &key, NOW);
        assert!(matches!(
            heard.judge_message(from, &right, NOW),
            Worth::New(_)
        ));
        assert_eq!(heard.judge_message(from, &right, NOW), Worth::Idle);
        let older = message(&key, &key, NOW - 1);
        assert_eq!(
            heard.judge_message(from, &older, NOW),
            Worth::Idle,
            "the later word counts"
        );
        assert_eq!(heard.valid_profiles(NOW).len(), 1);
        assert!(
            heard.valid_profiles(NOW + LIFE_MS).is_empty(),
            "it has expired"
        );
    }

    #[test]
    fn damaged_profiles_do_no_harm_and_none_is_believed() {
        let key = NodeKey::generate();
        let right = message(&key, &key, NOW);
        fuzzed::fuzz_decoder::<SignedProfile>(16, &[postcard::from_bytes(&right).unwrap()]);
        let mut damage = fuzzed::DamageSource::new(17);
        for _ in 0..2_000 {
            let damaged = damage.of(&right);
            let mut heard = Acquaintances::default();
            let worth = heard.judge_message(key.peer_id(), &damaged, NOW);
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
            assert_eq!(heard.judge_message(from, b"nonsense", NOW), Worth::Wrong);
        }
        let key = NodeKey::generate();
        let right = message(&key, &key, NOW);
        assert_eq!(heard.judge_message(from, &right, NOW), Worth::Flood);
        let other = NodeKey::generate().peer_id();
        assert!(matches!(
            heard.judge_message(other, &right, NOW),
            Worth::New(_)
        ));
        let later = message(&key, &key, NOW + 1);
        assert!(matches!(
            heard.judge_message(from, &later, NOW + WINDOW_MS),
            Worth::New(_)
        ));
    }

    /// A flood of profiles of fresh keys that hold; `at` gives the address of each, `from` who
    /// passes it on.
    fn flood(
        heard: &mut Acquaintances,
        at: impl Fn(usize) -> Multiaddr,
        from: impl Fn(usize) -> PeerId,
    ) {
        for number in 0..PROFILES_MAX + 200 {
            // Each peer within its rate.
            let now = NOW + number as u64 / 1_000 * WINDOW_MS;
            let key = NodeKey::generate();
            let message = message_at(&[at(number)], &key, &key, now);
            heard.judge_message(from(number), &message, now);
            assert!(heard.profiles.len() <= PROFILES_MAX);
        }
        assert_eq!(heard.profiles.len(), PROFILES_MAX, "every place is taken");
    }

    fn address(text: &str) -> Multiaddr {
        format!("{text}/tcp/4001").parse().unwrap()
    }

    /// Whether a newcomer at the address is heard, and stays while the flood goes on.
    fn newcomer_stays(heard: &mut Acquaintances, at: &str, from: PeerId, more: &[Vec<u8>]) -> bool {
        let key = NodeKey::generate();
        let (now, at) = (NOW + 10 * WINDOW_MS, [address(at)]);
        let judged = heard.judge_message(from, &message_at(&at, &key, &key, NOW), now);
        let other = NodeKey::generate().peer_id();
        for message in more {
            heard.judge_message(other, message, now);
        }
        let account = AccountKey(key.public_key());
        matches!(judged, Worth::New(_)) && heard.profiles.contains_key(&account)
    }

    #[test]
    fn many_keys_of_one_machine_leave_a_place_for_a_newcomer() {
        let (mut heard, peers) = (Acquaintances::default(), passers_on(64));
        let at = |number: usize| address(&format!("/ip4/203.0.113.{}", number % 256));
        flood(&mut heard, at, |number| peers[number % peers.len()]);
        let key = NodeKey::generate;
        let more: Vec<Vec<u8>> = (0..200)
            .map(|number| message_at(&[at(number)], &key(), &key(), NOW))
            .collect();
        assert!(newcomer_stays(
            &mut heard,
            "/ip4/198.51.100.7",
            peers[0],
            &more
        ));
        assert!(newcomer_stays(
            &mut heard,
            "/ip6/2001:db8::7",
            peers[0],
            &more
        ));
    }

    #[test]
    fn what_one_peer_passes_on_leaves_a_place_for_what_others_do() {
        let (mut heard, peers) = (Acquaintances::default(), passers_on(64));
        // Each says that it is somewhere else.
        let at = |number: usize| {
            let [high, low, ..] = (number as u32).to_le_bytes();
            address(&format!("/ip4/10.{high}.{low}.1"))
        };
        flood(&mut heard, at, |number| peers[number % 8]);
        assert!(newcomer_stays(
            &mut heard,
            "/ip4/198.51.100.7",
            peers[40],
            &[]
        ));
    }

    #[test]
    fn where_all_have_little_in_common_places_are_not_passed_to_and_fro() {
        let (mut heard, peers) = (Acquaintances::default(), passers_on(PROFILES_MAX));
        let at = |number: usize| {
            let [high, low, ..] = (number as u32).to_le_bytes();
            address(&format!("/ip4/10.{high}.{low}.1"))
        };
        flood(&mut heard, at, |number| peers[number % peers.len()]);
        let late = passers_on(1)[0];
        assert!(!newcomer_stays(&mut heard, "/ip4/10.0.0.7", late, &[]));
    }

    fn passers_on(count: usize) -> Vec<PeerId> {
        (0..count).map(|_| PeerId::random()).collect()
    }

    #[test]
    fn addresses_outlive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers.json");
        let (first, none) = Acquaintances::load_or_default(Some(file.clone()));
        assert!(none.is_empty());
        let key = NodeKey::generate();
        let addresses = vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()];
        first.save_addresses(&[(key.peer_id(), addresses.clone())].into());
        let (_, known) = Acquaintances::load_or_default(Some(file));
        assert_eq!(
            known,
            [Contact {
                account: key.public_key(),
                addresses
            }]
        );
    }
}
