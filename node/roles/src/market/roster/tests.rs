//! Tests which membership orders the roster accepts and which it refuses.

use std::sync::atomic::{AtomicU8, Ordering};

use souk_market::Founder;

use super::*;

const NOW: Millis = Millis(1_000);

struct Scene {
    market: MarketId,
    roster: Roster,
    operator: SigningKey,
    founders: Vec<SigningKey>,
    number: u64,
}

/// Another key each time.
fn generate() -> SigningKey {
    static MADE: AtomicU8 = AtomicU8::new(1);
    SigningKey::from_bytes(&[MADE.fetch_add(1, Ordering::Relaxed); 32])
}

fn address(key: &SigningKey) -> String {
    format!("/ip4/127.0.0.1/tcp/4001/p2p/{}", AccountKey::from(key))
}

fn scene(founders: u64) -> Scene {
    let operator = generate();
    let keys: Vec<SigningKey> = (0..founders).map(|_| generate()).collect();
    let entry = |(raft_id, key): (u64, &SigningKey)| Founder {
        raft_id,
        account: key.into(),
        address: address(key),
    };
    let mut genesis = Genesis::new("m".try_into().unwrap(), AccountKey::from(&operator));
    genesis.validators = (1..).zip(&keys).map(entry).collect();
    Scene {
        market: genesis.market_id(),
        roster: Roster::new(&genesis),
        operator,
        founders: keys,
        number: 0,
    }
}

impl Scene {
    fn signed(&mut self, key: &SigningKey, order: MembershipOrder) -> SignedMembershipOrder {
        self.number += 1;
        let body = Body {
            market: self.market,
            signer: AccountKey::from(key),
            number: self.number,
            expires: Millis(NOW.0 + 1),
            order,
        };
        SignedMembershipOrder::sign(body, key)
    }

    fn operate(&mut self, order: MembershipOrder) -> Result<u64, RosterRefusal> {
        let signed = self.signed(&self.operator.clone(), order);
        self.roster.apply_order(NOW, &signed)
    }

    fn admit(&mut self, key: &SigningKey) -> Result<u64, RosterRefusal> {
        self.operate(MembershipOrder::Admit {
            account: AccountKey::from(key),
            address: address(key),
        })
    }
}

#[test]
fn a_newcomer_gets_the_next_id_and_a_removed_one_never_its_own_again() {
    let (mut scene, newcomer) = (scene(3), generate());
    assert_eq!(scene.admit(&newcomer), Ok(4));
    assert_eq!(scene.operate(MembershipOrder::Remove { raft_id: 4 }), Ok(4));
    assert_eq!(scene.admit(&newcomer), Ok(5), "the same key, a new id");
    assert_eq!(scene.roster.staying_ids().collect::<Vec<_>>(), [1, 2, 3, 5]);
    assert_eq!(
        scene.operate(MembershipOrder::Remove { raft_id: 4 }),
        Err(RosterRefusal::Removed(4))
    );
}

#[test]
fn a_key_has_one_place() {
    let mut scene = scene(2);
    let founder = scene.founders[1].clone();
    let account = AccountKey::from(&founder);
    assert_eq!(
        scene.admit(&founder),
        Err(RosterRefusal::Known {
            account,
            raft_id: 2
        })
    );
}

#[test]
fn the_last_one_stays() {
    let mut scene = scene(2);
    assert_eq!(scene.operate(MembershipOrder::Remove { raft_id: 1 }), Ok(1));
    assert_eq!(
        scene.operate(MembershipOrder::Remove { raft_id: 2 }),
        Err(RosterRefusal::Last(2))
    );
}

#[test]
fn only_the_operator_admits_and_removes() {
    let mut scene = scene(3);
    let founder = scene.founders[0].clone();
    let signed = scene.signed(&founder, MembershipOrder::Remove { raft_id: 2 });
    let refused = scene.roster.apply_order(NOW, &signed);
    assert!(matches!(refused, Err(RosterRefusal::Operator { .. })));
}

#[test]
fn a_changed_order_is_not_its_signers() {
    let mut scene = scene(3);
    let mut signed = scene.signed(
        &scene.operator.clone(),
        MembershipOrder::Remove { raft_id: 2 },
    );
    signed.body.order = MembershipOrder::Remove { raft_id: 3 };
    let operator = AccountKey::from(&scene.operator);
    assert_eq!(
        scene.roster.apply_order(NOW, &signed),
        Err(RosterRefusal::Signature(operator))
    );
}

#[test]
fn an_order_takes_effect_once_and_in_time() {
    let mut scene = scene(3);
    let operator = scene.operator.clone();
    let signed = scene.signed(&operator, MembershipOrder::Lead { raft_id: 2 });
    assert_eq!(scene.roster.apply_order(NOW, &signed), Ok(2));
    let again = scene.roster.apply_order(NOW, &signed);
    assert!(matches!(again, Err(RosterRefusal::Number { .. })));
    let late = scene.signed(&operator, MembershipOrder::Lead { raft_id: 2 });
    let refused = scene.roster.apply_order(Millis(NOW.0 + 1), &late);
    assert!(matches!(refused, Err(RosterRefusal::Expired { .. })));
}

#[test]
fn a_validator_begins_for_itself_alone() {
    let mut scene = scene(2);
    let (first, second) = (scene.founders[0].clone(), scene.founders[1].clone());
    let begin = |key: &SigningKey| MembershipOrder::Begin {
        raft_id: 1,
        address: address(key),
        speaks: 3,
    };
    let signed = scene.signed(&second, begin(&second));
    let refused = scene.roster.apply_order(NOW, &signed);
    assert!(matches!(refused, Err(RosterRefusal::Operator { .. })));
    assert!(!scene.roster.entries()[&1].begun);
    let signed = scene.signed(&first, begin(&first));
    assert_eq!(scene.roster.apply_order(NOW, &signed), Ok(1));
    assert!(scene.roster.entries()[&1].begun);
    assert_eq!(scene.roster.entries()[&1].speaks, 3);
}

#[test]
fn there_are_never_more_than_the_most_there_may_be() {
    let mut scene = scene(1);
    for raft_id in 2..=SEATS_MAX as u64 {
        assert_eq!(scene.admit(&generate()), Ok(raft_id));
    }
    assert_eq!(scene.admit(&generate()), Err(RosterRefusal::Full));
}

#[test]
fn an_order_is_read_back_and_nothing_else_is_one() {
    let mut scene = scene(1);
    let signed = scene.signed(
        &scene.operator.clone(),
        MembershipOrder::Backup { raft_id: 1 },
    );
    assert_eq!(
        SignedMembershipOrder::decode(&signed.encode()),
        Some(Ok(signed.clone()))
    );
    assert_eq!(SignedMembershipOrder::decode(b"a batch of commands"), None);
    let cut = &signed.encode()[..20];
    assert!(matches!(SignedMembershipOrder::decode(cut), Some(Err(_))));
    assert_eq!(
        scene.roster.apply_order(NOW, &signed),
        Err(RosterRefusal::NotForTheLog)
    );
}

#[test]
fn as_many_operators_as_are_needed_let_a_validator_go_and_one_lets_another_lead() {
    let mut scene = scene(3);
    let (one, other) = (generate(), generate());
    let mut genesis = Genesis::new("m".try_into().unwrap(), AccountKey::from(&one));
    genesis.operators.push(AccountKey::from(&other));
    genesis.operators_needed = 2;
    genesis.validators = (1..)
        .zip(&scene.founders)
        .map(|(raft_id, key)| Founder {
            raft_id,
            account: key.into(),
            address: address(key),
        })
        .collect();
    (scene.market, scene.roster) = (genesis.market_id(), Roster::new(&genesis));
    let mut said = |key: &SigningKey, order: MembershipOrder| {
        let signed = scene.signed(key, order);
        scene.roster.apply_order(NOW, &signed)
    };
    let awaits = Err(RosterRefusal::Awaits {
        given: 1,
        needed: 2,
    });
    assert_eq!(said(&one, MembershipOrder::Remove { raft_id: 2 }), awaits);
    assert_eq!(said(&one, MembershipOrder::Remove { raft_id: 2 }), awaits);
    assert_eq!(said(&other, MembershipOrder::Remove { raft_id: 3 }), awaits);
    assert_eq!(said(&other, MembershipOrder::Lead { raft_id: 1 }), Ok(1));
    assert_eq!(said(&other, MembershipOrder::Remove { raft_id: 2 }), Ok(2));
    assert_eq!(scene.roster.staying_ids().collect::<Vec<_>>(), [1, 3]);
}
