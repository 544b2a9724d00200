//! Tests which validators must sign an offered state, by the operators' orders.

use bytes::Bytes;
use souk_consensus::{
    Certificate, Digest, LogIndex, LogTime, Position, StateMachine, Statement, Voucher,
};
use souk_market::{Event, Founder, Genesis, Millis};

use super::*;
use crate::market::roster::{Body, MembershipOrder, SignedMembershipOrder};
use crate::validator::exchange::{ExchangeMachine, LogCommand, Watch};

struct Nobody;

impl Watch for Nobody {
    fn on_events(&mut self, _at: Position, _time: Millis, _events: &[Event]) {}
}

const OPERATOR: u8 = 100;

/// The key of a validator, by its raft id.
fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn account(number: u8) -> AccountKey {
    AccountKey::from(&key(number))
}

fn id(number: u8) -> ReplicaId {
    ReplicaId::new(number.into()).unwrap()
}

fn genesis(founders: u8) -> Genesis {
    let mut genesis = Genesis::new("m".try_into().unwrap(), account(OPERATOR));
    let founder = |number: u8| Founder {
        raft_id: number.into(),
        account: account(number),
        address: "somewhere".into(),
    };
    genesis.validators = (1..=founders).map(founder).collect();
    genesis
}

/// A market's state, and what was ordered in it.
struct Scene {
    genesis: Genesis,
    machine: ExchangeMachine<Nobody>,
    orders: u64,
}

impl Scene {
    fn new(founders: u8) -> Self {
        let genesis = genesis(founders);
        Self {
            machine: ExchangeMachine::new(&genesis, Nobody),
            genesis,
            orders: 0,
        }
    }

    fn order(&mut self, order: MembershipOrder, by: u8) {
        self.orders += 1;
        let body = Body {
            market: self.genesis.market_id(),
            signer: account(by),
            number: self.orders,
            expires: Millis(1_000),
            order,
        };
        let at = Position {
            index: LogIndex(2),
            offset: 0,
        };
        let order = LogCommand::Order(SignedMembershipOrder::sign(body, &key(by)));
        self.machine.apply_command(at, LogTime(1), &order);
    }

    fn admit(&mut self, number: u8, by: u8) {
        let address = "elsewhere".into();
        let account = account(number);
        self.order(MembershipOrder::Admit { account, address }, by);
    }

    fn remove(&mut self, number: u8, by: u8) {
        let raft_id = number.into();
        self.order(MembershipOrder::Remove { raft_id }, by);
    }

    /// What another replica makes of this state, with these voters, signed by those.
    fn tally(
        &self,
        knows: &ExchangeMachine<Nobody>,
        known: &[u8],
        voters: &[u8],
        by: &[u8],
    ) -> Tally {
        let statement = Statement {
            index: LogIndex(7),
            state: Digest([3; 32]),
        };
        let voucher = |by: &u8| Voucher {
            by: id(*by),
            signature: Bytes::from(sign_statement(
                self.genesis.market_id(),
                &statement.signing_bytes(),
                &key(*by),
            )),
        };
        let certificate = Certificate {
            statement,
            vouchers: by.iter().map(voucher).collect(),
        };
        knows.count_vouchers(&OfferedState {
            known: &known.iter().copied().map(id).collect(),
            voters: &voters.iter().copied().map(id).collect(),
            machine: &self.machine.snapshot(),
            certificate: &certificate,
        })
    }
}

fn counts(members: usize, vouched: usize) -> Tally {
    Tally { members, vouched }
}

#[test]
fn a_newcomer_that_knows_the_genesis_alone_follows_the_operators_orders() {
    let mut scene = Scene::new(1);
    let fresh = ExchangeMachine::new(&scene.genesis, Nobody);
    scene.admit(2, OPERATOR);
    assert_eq!(scene.tally(&fresh, &[], &[1], &[1]), counts(1, 1));
    scene.admit(3, OPERATOR);
    scene.remove(1, OPERATOR);
    assert_eq!(scene.tally(&fresh, &[], &[1, 2], &[2]), counts(2, 1));
    assert_eq!(scene.tally(&fresh, &[], &[2, 3], &[1, 2, 3]), counts(2, 2));
}

#[test]
fn one_that_lags_behind_the_roster_counts_those_who_joined_since() {
    let mut scene = Scene::new(3);
    let lags = ExchangeMachine::new(&scene.genesis, Nobody);
    for (new, old) in [(4, 1), (5, 2)] {
        scene.admit(new, OPERATOR);
        scene.remove(old, OPERATOR);
    }
    let tally = |by: &[u8]| scene.tally(&lags, &[1, 2, 3], &[3, 4, 5], by);
    assert_eq!(tally(&[4, 5]), counts(3, 2));
    assert_eq!(tally(&[4]), counts(3, 1));
    assert_eq!(tally(&[1, 2, 4]), counts(3, 1), "who left does not count");
}

#[test]
fn a_liar_shrinks_no_group_and_votes_once() {
    let scene = Scene::new(3);
    let honest = ExchangeMachine::new(&scene.genesis, Nobody);
    assert_eq!(scene.tally(&honest, &[1, 2, 3], &[1], &[1]), counts(3, 1));
    let mut forged = Scene::new(3);
    // Orders that the operator did not give change nothing.
    forged.admit(4, 1);
    forged.remove(2, 1);
    assert_eq!(forged.tally(&honest, &[1, 2, 3], &[1], &[1]), counts(3, 1));
    assert_eq!(forged.tally(&honest, &[1, 2, 3], &[1, 4], &[1, 4]), NOBODY);
    let mut admitted = Scene::new(3);
    admitted.admit(4, OPERATOR);
    admitted.remove(4, OPERATOR);
    admitted.admit(4, OPERATOR);
    let twice = admitted.tally(&honest, &[1, 2, 3], &[1, 4, 5], &[1, 4, 5]);
    assert_eq!(twice, NOBODY, "one key under two ids");
}

#[test]
fn only_a_validator_s_own_key_over_this_market_s_state_holds() {
    let scene = Scene::new(3);
    let machine = &scene.machine;
    let market = scene.genesis.market_id();
    let signature = sign_statement(market, b"state", &key(2));
    assert!(machine.has_signed(id(2), b"state", &signature));
    assert!(!machine.has_signed(id(2), b"other", &signature));
    assert!(!machine.has_signed(id(3), b"state", &signature));
    assert!(!machine.has_signed(id(9), b"state", &signature));
    let other = sign_statement(MarketId::default(), b"state", &key(2));
    assert!(!machine.has_signed(id(2), b"state", &other));
    let mine = ExchangeMachine::new(&scene.genesis, Nobody).signing_with(key(2));
    assert_eq!(mine.sign_statement(b"state"), signature);
    assert!(machine.sign_statement(b"state").is_empty(), "it has no key");
}

#[test]
fn raft_s_members_change_as_the_operators_ordered() {
    use ChangeStanding::{Ordered, Outdated, Unordered};
    use MemberChange::{AddLearner, Promote, Remove};
    let mut scene = Scene::new(3);
    let judge = |scene: &Scene, change| scene.machine.judge_change(change);
    for change in [AddLearner(id(4)), Promote(id(4)), Remove(id(2))] {
        assert_eq!(judge(&scene, change), Unordered, "{change}");
    }
    scene.admit(4, OPERATOR);
    scene.remove(2, OPERATOR);
    for change in [AddLearner(id(4)), Promote(id(4)), Remove(id(2))] {
        assert_eq!(judge(&scene, change), Ordered, "{change}");
    }
    assert_eq!(judge(&scene, Remove(id(3))), Unordered);
    assert_eq!(judge(&scene, Promote(id(2))), Outdated);
}
