//! Plays disputes about work whose results are exact, which means that all honest devices give the
//! same bits: one against a provider that lies, and one by a buyer that accuses an honest provider.
//!
//! The market has four validators, of which one judges in favour of the attacker. No dispute can
//! cost an honest party more than the price of the leased work.

use souk_market::{Accusation, Command, Credits, DeviceMicros, DisputeState, Millis, Verdict};

use super::position::{PRICE, Position, Side, sign_receipt};
use super::{AttackCost, Loss, WorstLoss, new_attack_cost};

/// The planned work of the disputed lease.
const PLANNED: Millis = Millis(300_000);

/// The provider's stake: 5 credits, as much as 5,000 seconds of the lease cost.
const STAKE: Credits = Credits(5_000_000);

/// Plays both disputes.
pub(super) fn play_disputes() -> [AttackCost; 2] {
    [play_wrong_result(), play_false_accusation()]
}

/// Plays a provider that does no work, signs a wrong result and is paid; the buyer disputes it.
fn play_wrong_result() -> AttackCost {
    let mut position = Position::new();
    position.is_working = false;
    let lied = Verdict::Guilty;
    let state = dispute_lease(&mut position, [Verdict::Innocent, lied, lied, lied]);
    assert!(matches!(state, DisputeState::Guilty { .. }), "{state:?}");
    // A wrong result is worth nothing.
    let loss = Loss {
        lost: -position.gain(Side::Buyer),
        gained: position.gain(Side::Provider),
        reputation: position.reputation_lost(Side::Buyer),
    };
    let attack = "an exact result is wrong, one of four validators lies".to_owned();
    new_attack_cost(attack, PLANNED, WorstLoss::from_loss(loss), 1)
}

/// Plays a buyer that accuses a provider that worked.
fn play_false_accusation() -> AttackCost {
    let mut position = Position::new();
    let right = Verdict::Innocent;
    let state = dispute_lease(&mut position, [Verdict::Guilty, right, right, right]);
    assert!(matches!(state, DisputeState::Innocent { .. }), "{state:?}");
    let worth = i64::try_from(PLANNED.0 * PRICE.0 / 1_000).expect("it is small");
    let loss = Loss {
        lost: worth - position.gain(Side::Provider),
        gained: worth + position.gain(Side::Buyer),
        reputation: position.reputation_lost(Side::Provider),
    };
    let attack = "a right exact result is disputed, one of four validators lies".to_owned();
    new_attack_cost(attack, PLANNED, WorstLoss::from_loss(loss), 1)
}

/// Settles the lease as if the planned work were done, has its buyer dispute it, and counts the
/// verdicts. Returns the final state of the dispute.
fn dispute_lease(position: &mut Position, verdicts: [Verdict; 4]) -> DisputeState {
    let lease = position.lease().id;
    let is_staked = position.send_command(Side::Provider, Command::Stake { amount: STAKE });
    assert!(is_staked, "it has the credits");
    position.send_command(Side::Buyer, Command::StartWork { lease });
    position.pass_time(PLANNED, PLANNED);
    let mut body = position.honest_receipt();
    body.usage = DeviceMicros(PLANNED.0 * 1_000);
    body.amount = Credits(PLANNED.0 * PRICE.0 / 1_000);
    assert!(position.settle_receipt(body.clone()), "both have signed");
    let accusation = Accusation {
        receipt: sign_receipt(body),
        weights: Vec::new(),
    };
    let accuse = Command::Accuse(Box::new(accusation));
    assert!(position.send_command(Side::Buyer, accuse), "it is in time");
    position.judge_dispute(&verdicts);
    position.last_dispute().expect("it is remembered").state
}
