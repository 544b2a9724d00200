//! Keeps a node's own list of the market's validators. The node updates it from the validators'
//! answers, but only as far as signatures prove them. A client's broker and a joining validator use
//! it.
//!
//! The genesis names the founders and the operators. An answer adds a validator only if it carries
//! the operators' order that admits it and the validator's own signed statement that it has begun.
//! It removes one only with the operators' order that removes it. So a validator that lies can
//! neither hide the others nor invent some.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Genesis};

use super::market_protocol::{Member, Members, Standing};
use super::roster::Roster;

/// The validators that a node knows of, as far as signatures prove them.
#[derive(Clone, Debug)]
pub struct KnownMembers {
    /// The roster with which the market began.
    genesis: Roster,
    members: BTreeMap<u64, Member>,
}

impl KnownMembers {
    /// Creates the list with the founders, whom the genesis names.
    #[must_use]
    pub fn new(genesis: &Genesis) -> Self {
        let genesis = Roster::new(genesis);
        let entries = genesis.entries().iter();
        let founder = entries.map(|(raft_id, entry)| {
            let founder = Member {
                raft_id: *raft_id,
                account: entry.account,
                address: entry.address.clone(),
                standing: Standing::Voter,
                begun: false,
                speaks: 0,
                reached: None,
                running: None,
            };
            (*raft_id, founder)
        });
        Self {
            members: founder.collect(),
            genesis,
        }
    }

    /// Learns from an answer what its signatures show.
    pub fn learn_members(&mut self, answer: &Members) {
        for member in &answer.validators {
            let raft_id = member.raft_id;
            let beginning = self
                .genesis
                .find_beginning(raft_id, member.account, &answer.orders);
            if !self.is_shown(member, answer, beginning.is_some()) {
                continue;
            }
            let was_removed = self.is_removed(raft_id);
            let is_removed = was_removed || self.genesis.proves_removal(raft_id, &answer.orders);
            let before = self.members.get(&raft_id);
            let standing = match (member.standing, is_removed) {
                _ if was_removed => Standing::Removed,
                // Both begin with the operators' order, so without it they are a claim.
                (Standing::Removed | Standing::Leaving, false) => {
                    before.map_or(Standing::Voter, |it| it.standing)
                }
                (standing, _) => standing,
            };
            let address = beginning.map(str::to_owned);
            let address = address.or_else(|| before.map(|it| it.address.clone()));
            let learned = Member {
                standing,
                begun: beginning.is_some() || before.is_some_and(|it| it.begun),
                address: address.unwrap_or_else(|| member.address.clone()),
                ..member.clone()
            };
            self.members.insert(raft_id, learned);
        }
    }

    /// Returns whether signatures show that this raft id belongs to this key, and that the
    /// operators admitted it.
    fn is_shown(&self, member: &Member, answer: &Members, has_begun: bool) -> bool {
        match self.members.get(&member.raft_id) {
            Some(known) => known.account == member.account,
            None => {
                let orders = &answer.orders;
                has_begun && self.genesis.proves_admission(member.account, orders)
            }
        }
    }

    /// Returns the validators that were not removed.
    pub fn staying_members(&self) -> impl Iterator<Item = &Member> {
        let all = self.members.values();
        all.filter(|member| member.standing != Standing::Removed)
    }

    /// Returns all present and former validators.
    pub fn all_members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Returns whether a validator was removed.
    #[must_use]
    pub fn is_removed(&self, raft_id: u64) -> bool {
        let member = self.members.get(&raft_id);
        member.is_some_and(|member| member.standing == Standing::Removed)
    }

    /// Returns whether a validator has begun its log.
    #[must_use]
    pub fn has_begun(&self, raft_id: u64, account: AccountKey) -> bool {
        let member = self.members.get(&raft_id);
        member.is_some_and(|member| member.account == account && member.begun)
    }

    /// Returns whether an answer shows that the operators removed a validator, and says that it has
    /// left. This list never has a validator that was admitted and did not begin.
    #[must_use]
    pub fn shows_removal(&self, raft_id: u64, answer: &Members) -> bool {
        let member = answer.member(raft_id);
        member.is_some_and(|member| member.standing == Standing::Removed)
            && self.genesis.proves_removal(raft_id, &answer.orders)
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{Founder, Millis, SigningKey};

    use super::*;
    use crate::market::roster::{Body, MembershipOrder, SignedMembershipOrder};

    const OPERATOR: u8 = 100;
    const LIAR: u8 = 66;

    fn key(number: u8) -> SigningKey {
        SigningKey::from_bytes(&[number; 32])
    }

    fn account(number: u8) -> AccountKey {
        AccountKey::from(&key(number))
    }

    fn genesis() -> Genesis {
        let mut genesis = Genesis::new("m".try_into().unwrap(), account(OPERATOR));
        let founder = |number: u8| Founder {
            raft_id: number.into(),
            account: account(number),
            address: format!("founder {number}"),
        };
        genesis.validators = (1..=3).map(founder).collect();
        genesis
    }

    fn signed(by: u8, order: MembershipOrder) -> SignedMembershipOrder {
        let body = Body {
            market: genesis().market_id(),
            signer: account(by),
            number: 1,
            expires: Millis(1),
            order,
        };
        SignedMembershipOrder::sign(body, &key(by))
    }

    fn admit(number: u8, by: u8) -> SignedMembershipOrder {
        let address = "elsewhere".into();
        let account = account(number);
        signed(by, MembershipOrder::Admit { account, address })
    }

    fn begin(raft_id: u64, by: u8) -> SignedMembershipOrder {
        let address = format!("validator {raft_id}");
        let speaks = 1;
        signed(
            by,
            MembershipOrder::Begin {
                raft_id,
                address,
                speaks,
            },
        )
    }

    fn remove(raft_id: u64, by: u8) -> SignedMembershipOrder {
        signed(by, MembershipOrder::Remove { raft_id })
    }

    fn member(raft_id: u64, of: u8, standing: Standing) -> Member {
        Member {
            raft_id,
            account: account(of),
            address: "as the answer says".into(),
            standing,
            begun: true,
            speaks: 1,
            reached: None,
            running: None,
        }
    }

    fn answer(validators: Vec<Member>, orders: Vec<SignedMembershipOrder>) -> Members {
        Members {
            answered_by: 1,
            leader: 1,
            operators: vec![account(OPERATOR)],
            validators,
            orders,
        }
    }

    fn addresses(known: &KnownMembers) -> Vec<&str> {
        known
            .staying_members()
            .map(|it| it.address.as_str())
            .collect()
    }

    #[test]
    fn one_answer_without_signatures_replaces_no_list() {
        let mut known = KnownMembers::new(&genesis());
        let mut validators: Vec<Member> = (1..=3)
            .map(|number| member(number.into(), number, Standing::Removed))
            .collect();
        validators.push(member(4, LIAR, Standing::Voter));
        let orders = vec![
            admit(LIAR, LIAR),
            begin(4, LIAR),
            remove(1, LIAR),
            remove(2, LIAR),
        ];
        let lie = answer(validators, orders);
        known.learn_members(&lie);
        assert_eq!(addresses(&known), ["founder 1", "founder 2", "founder 3"]);
        assert!((1..=3).all(|id| !known.is_removed(id) && !known.shows_removal(id, &lie)));
        assert!(!known.has_begun(1, account(1)), "founder 1 has not said so");
        // Nor does one that leaves them out, or gives a founder's id to another.
        known.learn_members(&answer(vec![member(1, LIAR, Standing::Voter)], Vec::new()));
        assert_eq!(addresses(&known), ["founder 1", "founder 2", "founder 3"]);
    }

    #[test]
    fn a_validator_leaves_only_by_the_operators_order() {
        let mut known = KnownMembers::new(&genesis());
        let leaving = |orders| answer(vec![member(1, 1, Standing::Leaving)], orders);
        let standing = |known: &KnownMembers| {
            let mut all = known.all_members();
            all.find(|it| it.raft_id == 1).map(|it| it.standing)
        };
        known.learn_members(&leaving(vec![remove(1, LIAR)]));
        assert_eq!(standing(&known), Some(Standing::Voter));
        known.learn_members(&leaving(vec![remove(1, OPERATOR)]));
        assert_eq!(standing(&known), Some(Standing::Leaving));
    }

    #[test]
    fn what_operators_and_validators_signed_is_believed_of_anyone() {
        let mut known = KnownMembers::new(&genesis());
        let validators = vec![
            member(1, 1, Standing::Removed),
            member(2, 2, Standing::Voter),
            member(4, 4, Standing::Voter),
            member(5, 5, Standing::Waiting),
        ];
        let orders = vec![
            admit(4, OPERATOR),
            begin(4, 4),
            admit(5, OPERATOR),
            remove(1, OPERATOR),
            begin(2, 2),
        ];
        let told = answer(validators, orders);
        known.learn_members(&told);
        assert_eq!(
            addresses(&known),
            ["validator 2", "founder 3", "validator 4"]
        );
        assert!(known.is_removed(1) && known.shows_removal(1, &told));
        assert!(known.has_begun(4, account(4)) && !known.has_begun(4, account(5)));
        // Who left never comes back under its id.
        known.learn_members(&answer(vec![member(1, 1, Standing::Voter)], Vec::new()));
        assert!(known.is_removed(1));
    }

    #[test]
    fn a_validator_that_was_removed_is_another_one_under_its_new_id() {
        let mut known = KnownMembers::new(&genesis());
        let validators = vec![
            member(4, 4, Standing::Removed),
            member(5, 4, Standing::Voter),
        ];
        let orders = vec![
            admit(4, OPERATOR),
            begin(4, 4),
            begin(5, 4),
            remove(4, OPERATOR),
        ];
        known.learn_members(&answer(validators, orders));
        assert!(known.is_removed(4) && !known.is_removed(5));
        assert!(addresses(&known).contains(&"validator 5"));
    }
}
