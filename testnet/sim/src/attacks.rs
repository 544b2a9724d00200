//! Searches for the most that a cheating buyer or provider can cost the other party of a lease.
//! `souk testnet attacks` prints the result.
//!
//! An attack plays one lease on the real exchange, in steps of ten seconds. One party acts as a
//! souk node; at each step, the other can make any move that the rules allow, or none. The search
//! follows all sequences of moves to the end, and those that reach the same state only once, so the
//! printed loss is the worst at this step size. The moves come from all of the market's commands
//! and all fields of a receipt: see `moves` and `false_receipts`.

pub mod cheap_models;
mod disputes;
mod false_receipts;
mod moves;
mod position;
pub mod tabs;
pub mod training;
pub mod unpaid_answers;

use std::collections::HashMap;

use serde::Serialize;
use souk_market::{Command, DeviceMicros, LeaseState, Millis, ReceiptBody};

use disputes::play_disputes;
use false_receipts::make_false_receipts;
use moves::{CommandKind, Player, Scene, command_instances};
use position::{LENGTH, PRICE, Position, Side};

/// The length of a step.
const STEP: Millis = Millis(10_000);
/// Time between an attacker's moves when the planned work is a minute or longer.
const LONG_STEP: Millis = Millis(30_000);
/// When a souk provider that sees no work declares itself ready.
const READY_AFTER: Millis = Millis(10_000);
/// When a provider checks whether the buyer has reported the start of the work.
const FIRST_NOTE_AFTER: Millis = Millis(30_000);
/// How often a provider notes its usage.
const NOTE_PERIOD: Millis = Millis(240_000);
/// The time that a souk buyer allows beyond the planned time: a factor, and a constant.
const BUYER_PATIENCE: (u64, Millis) = (20, Millis(5_000));
/// The amount that a souk buyer pays beyond the time that it saw: the divisor of a share, and a
/// constant.
const PAYMENT_MARGIN: (u64, Millis) = (16, Millis(250));
/// Maximum usage that notes add beyond the buyer's last acceptance.
const NOTE_SPAN: Millis = Millis(300_000);

/// An attack, and its maximum cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttackCost {
    /// A description of the attack.
    pub attack: String,
    /// Planned device seconds of the work.
    pub planned_s: u64,
    /// Maximum loss of the honest party, in device seconds at the lease's price.
    pub lost_s: f64,
    /// The attacker's cost in that case, in the same unit; negative if it gains.
    pub cost_s: f64,
    /// Maximum loss beyond the attacker's cost, over all sequences of moves.
    pub excess_s: f64,
    /// Reputation that the honest party loses, per thousand.
    pub reputation_lost: u16,
    /// Sequences of moves that the search followed; those that reach the same state count once.
    #[serde(rename = "ways")]
    pub sequences: usize,
    /// The falsified fields of a receipt, one at a time.
    pub fields: Vec<&'static str>,
}

/// A way to cheat, which determines the attacking party and the behaviour of the honest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// The provider does no work and notes any usage; the buyer is present.
    FalseNotes,
    /// The provider does no work and notes any usage; the buyer has left after the start.
    FalseNotesToNobody,
    /// The provider works; the buyer takes the results and pays as little as possible.
    UnpaidWork,
    /// The provider holds its device ready; the buyer sends nothing.
    Holding,
}

impl Attack {
    const ALL: [(Attack, &[u64]); 4] = [
        (Attack::FalseNotes, &[3, 600]),
        (Attack::FalseNotesToNobody, &[600]),
        (Attack::UnpaidWork, &[1, 60, 1_500]),
        (Attack::Holding, &[0]),
    ];

    fn attack_text(self) -> &'static str {
        match self {
            Self::FalseNotes => "no work and false notes, the buyer is there",
            Self::FalseNotesToNobody => "no work and false notes, the buyer is gone",
            Self::UnpaidWork => "work is taken, as little paid as can be",
            Self::Holding => "a device is held, nothing is sent",
        }
    }

    fn attacker(self) -> Side {
        match self {
            Self::FalseNotes | Self::FalseNotesToNobody => Side::Provider,
            Self::UnpaidWork | Self::Holding => Side::Buyer,
        }
    }
}

/// The result of an attack, in micro-credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loss {
    lost: i64,
    /// The attacker's gain, so that the cheaper of two equal losses ranks as the worse.
    gained: i64,
    reputation: u16,
}

/// The worst of many results.
#[derive(Clone, Copy)]
struct WorstLoss {
    loss: Loss,
    /// Maximum loss beyond the attacker's cost.
    excess: i64,
}

impl WorstLoss {
    fn from_loss(loss: Loss) -> WorstLoss {
        let excess = loss.lost + loss.gained;
        WorstLoss { loss, excess }
    }

    fn max_with(self, other: WorstLoss) -> WorstLoss {
        WorstLoss {
            loss: self.loss.max(other.loss),
            excess: self.excess.max(other.excess),
        }
    }
}

/// Plays all attacks and returns the maximum cost of each.
pub fn search_attacks() -> Vec<AttackCost> {
    let mut costs = Vec::new();
    for (attack, plans) in Attack::ALL {
        let plans = plans.iter().map(|seconds| Millis(seconds * 1_000));
        costs.extend(plans.map(|planned| find_worst(attack, planned)));
    }
    costs.extend(play_false_receipts());
    costs.push(play_false_disputes());
    costs.extend(play_disputes());
    costs
}

fn find_worst(attack: Attack, planned: Millis) -> AttackCost {
    let mut known = HashMap::new();
    let worst = search_worst(attack, planned, Position::new(), &mut known);
    new_attack_cost(attack.attack_text().to_owned(), planned, worst, known.len())
}

fn new_attack_cost(
    attack: String,
    planned: Millis,
    worst: WorstLoss,
    sequences: usize,
) -> AttackCost {
    let WorstLoss { loss, excess } = worst;
    let seconds = |micro: i64| micro as f64 / PRICE.0 as f64;
    AttackCost {
        attack,
        planned_s: planned.0 / 1_000,
        lost_s: seconds(loss.lost),
        cost_s: seconds(-loss.gained),
        excess_s: seconds(excess),
        reputation_lost: loss.reputation,
        sequences,
        fields: Vec::new(),
    }
}

/// Returns the honest party's maximum loss from this position.
fn search_worst(
    attack: Attack,
    planned: Millis,
    mut position: Position,
    known: &mut HashMap<Vec<u8>, WorstLoss>,
) -> WorstLoss {
    act_honestly(attack, planned, &mut position);
    if position.lease().is_closed() {
        return WorstLoss::from_loss(honest_loss(attack, &position));
    }
    let key = position.key();
    if let Some(found) = known.get(&key) {
        return *found;
    }
    let mut most: Option<WorstLoss> = None;
    for command in list_moves(attack, planned, &position) {
        let mut next = position.clone();
        if let Some(command) = command
            && !next.send_command(attack.attacker(), command)
        {
            continue;
        }
        next.pass_time(STEP, planned_work(attack, planned));
        let found = search_worst(attack, planned, next, known);
        most = Some(most.map_or(found, |most| most.max_with(found)));
    }
    let most = most.expect("to do nothing is always possible");
    known.insert(key, most);
    most
}

/// Returns the attacker's moves, always including none.
fn list_moves(attack: Attack, planned: Millis, position: &Position) -> Vec<Option<Command>> {
    let is_long = planned >= Millis(60_000);
    if is_long && !position.lease_age().0.is_multiple_of(LONG_STEP.0) {
        return vec![None];
    }
    let lease = position.lease();
    let possible = lease.usage_possible(position.now);
    let span = DeviceMicros(lease.agreed.0 + NOTE_SPAN.0 * 1_000);
    let scene = Scene {
        lease,
        usages: [possible.min(span), payable_usage(planned)],
    };
    let player = match attack.attacker() {
        Side::Buyer => Player::Buyer,
        Side::Provider => Player::Provider,
    };
    let kinds = CommandKind::ALL
        .iter()
        .filter(|kind| kind.player() == player);
    let commands = kinds.flat_map(|kind| command_instances(*kind, &scene));
    std::iter::once(None).chain(commands.map(Some)).collect()
}

fn planned_work(attack: Attack, planned: Millis) -> Millis {
    match attack {
        Attack::UnpaidWork => planned,
        Attack::FalseNotes | Attack::FalseNotesToNobody | Attack::Holding => Millis(0),
    }
}

/// Makes the honest party's move.
fn act_honestly(attack: Attack, planned: Millis, position: &mut Position) {
    let lease = position.lease().id;
    let is_first = position.lease_age() == Millis(0);
    match attack {
        Attack::FalseNotes | Attack::FalseNotesToNobody if is_first => {
            position.send_command(Side::Buyer, Command::StartWork { lease });
        }
        Attack::FalseNotesToNobody => {}
        Attack::FalseNotes => judge_note(planned, position),
        Attack::UnpaidWork => note_work(planned, position),
        Attack::Holding => claim_time(position),
    }
}

/// Acts for a buyer that is present but receives nothing: it accepts no usage, and disputes
/// the lease when its patience ends.
fn judge_note(planned: Millis, position: &mut Position) {
    let lease = position.lease().id;
    let (times, beyond) = BUYER_PATIENCE;
    let patience = Millis(planned.0 * times + beyond.0);
    if position.lease().reserved_until.is_some() {
        position.send_command(Side::Buyer, Command::StartWork { lease });
    }
    if position.lease_age() >= patience {
        position.send_command(Side::Buyer, Command::Dispute { lease });
    }
}

/// Returns the maximum usage for which a souk buyer pays if it saw this much time.
fn payable_usage(seen: Millis) -> DeviceMicros {
    let (share, beyond) = PAYMENT_MARGIN;
    DeviceMicros((seen.0 + seen.0 / share + beyond.0) * 1_000)
}

/// Acts for a working provider: it notes its usage, and stops at its limit.
fn note_work(planned: Millis, position: &mut Position) {
    let lease = position.lease();
    let (id, is_running) = (lease.id, lease.is_running());
    let (has_note, accepted) = (lease.note.is_some(), lease.accepted);
    let usage = DeviceMicros(position.worked.0 * 1_000);
    if is_running && !lease.work_started && position.lease_age() >= FIRST_NOTE_AFTER {
        position.is_working = false;
    }
    let is_over = !is_running || !position.is_working || position.worked >= planned;
    let is_due = position.now.saturating_since(position.noted) >= NOTE_PERIOD || is_over;
    if has_note || !is_due {
        return;
    }
    if usage <= accepted {
        if is_over {
            claim_time(position);
        }
        return;
    }
    position.noted = position.now;
    let lease = position.lease();
    let most = match lease.work_started {
        true => DeviceMicros(lease.agreed.0 + NOTE_SPAN.0 * 1_000),
        false => DeviceMicros(2_000_000),
    };
    if usage > most {
        position.is_working = false;
    }
    let usage = usage.min(most);
    let note = Command::NoteUsage { lease: id, usage };
    if !position.send_command(Side::Provider, note) {
        position.is_working = false;
        claim_time(position);
    }
}

/// Acts for a provider that sees no work: it declares itself ready, and claims the time of an ended
/// lease.
fn claim_time(position: &mut Position) {
    let lease = position.lease();
    let is_due = match lease.state {
        LeaseState::Active => lease.reserved_until.is_none() && position.lease_age() >= READY_AFTER,
        LeaseState::Due { .. } => !lease.claimed,
        _ => false,
    };
    if is_due {
        let lease = lease.id;
        position.send_command(Side::Provider, Command::StateReady { lease });
    }
}

/// Returns the honest party's loss. The market owes a working provider its work, and a provider
/// with a held device its idle price for the rest of the time.
fn honest_loss(attack: Attack, position: &Position) -> Loss {
    let (attacker, honest) = (attack.attacker(), attack.attacker().other_party());
    let worth = |time: Millis| i64::try_from(time.0 * PRICE.0 / 1_000).unwrap_or(i64::MAX);
    let idle = position.held.saturating_since(position.worked);
    let owed = match attack {
        Attack::FalseNotes | Attack::FalseNotesToNobody => 0,
        Attack::UnpaidWork => worth(position.worked),
        Attack::Holding => worth(idle) * i64::from(position.lease().idle.0) / 1_000,
    };
    Loss {
        lost: owed - position.gain(honest),
        gained: position.gain(attacker),
        reputation: position.reputation_lost(honest),
    }
}

/// Plays receipts with one false field for a minute's finished work.
fn play_false_receipts() -> Vec<AttackCost> {
    let planned = Millis(60_000);
    let mut position = Position::new();
    let lease = position.lease().id;
    position.send_command(Side::Buyer, Command::StartWork { lease });
    while position.worked < planned {
        position.pass_time(STEP, planned);
    }
    let honest = position.honest_receipt();
    let possible = DeviceMicros(LENGTH.0 * 1_000);
    let worth = i64::try_from(honest.amount.0).unwrap_or(i64::MAX);
    let mut by_loss: Vec<((Loss, bool), Vec<&'static str>)> = Vec::new();
    for forged in make_false_receipts(&honest, possible) {
        let mut after = position.clone();
        let is_accepted = is_signed(&forged.body, &honest);
        match is_accepted {
            true => drop(after.settle_receipt(forged.body)),
            false => drop(after.send_command(Side::Buyer, Command::Dispute { lease })),
        }
        if !after.lease().is_closed() {
            let usage = after.lease().usage_possible(after.now);
            after.send_command(Side::Provider, Command::NoteUsage { lease, usage });
        }
        let loss = Loss {
            lost: -after.gain(Side::Buyer) - worth,
            gained: after.gain(Side::Provider) - worth,
            reputation: after.reputation_lost(Side::Buyer),
        };
        let loss = (loss, is_accepted);
        match by_loss.iter_mut().find(|(known, _)| *known == loss) {
            Some((_, fields)) => fields.push(forged.field),
            None => by_loss.push((loss, vec![forged.field])),
        }
    }
    let cost = |((loss, is_accepted), fields): ((Loss, bool), Vec<&'static str>)| {
        let what = match is_accepted {
            true => "what its buyer cannot know",
            false => "what its buyer knows",
        };
        let attack = format!("a receipt is false in {what}, {} fields", fields.len());
        let cost = new_attack_cost(attack, planned, WorstLoss::from_loss(loss), fields.len());
        AttackCost { fields, ..cost }
    };
    by_loss.into_iter().map(cost).collect()
}

/// Returns whether a souk buyer that knows the honest receipt signs this one.
fn is_signed(body: &ReceiptBody, honest: &ReceiptBody) -> bool {
    // The buyer accepts fields that it cannot know. All others must match its knowledge, and it
    // bounds the sum.
    let known = ReceiptBody {
        dtype: body.dtype,
        usage: body.usage,
        idle: body.idle,
        amount: body.amount,
        bytes_in: body.bytes_in,
        bytes_out: body.bytes_out,
        started: body.started,
        finished: body.finished,
        ..honest.clone()
    };
    let seen = Millis(honest.usage.0 / 1_000);
    // The device had work all the time, so idle time counts as much as use.
    let held = DeviceMicros(body.usage.0.saturating_add(body.idle.0));
    *body == known && held <= payable_usage(seen) && body.check_body().is_ok()
}

/// Plays a buyer with new keys that refuses, stays silent, and settles a thousandth of a credit, a
/// hundred times. Returns the effect on the provider's reputation.
fn play_false_disputes() -> AttackCost {
    let mut position = Position::new();
    let rounds = 100;
    for round in 0..rounds {
        let lease = position.lease().id;
        position.send_command(Side::Buyer, Command::StartWork { lease });
        position.pass_time(Millis(1_000), Millis(0));
        let spoken = match round % 3 {
            0 => Command::Dispute { lease },
            _ => Command::EndLease { lease },
        };
        position.send_command(Side::Buyer, spoken);
        position.send_command(Side::Provider, Command::StateReady { lease });
        assert!(position.lease().is_closed() && position.lease_again());
    }
    let mut slow = position.honest_receipt();
    slow.usage = DeviceMicros(1_000_000);
    slow.delivered_mega_ops = 1;
    slow.amount =
        ReceiptBody::amount_due(slow.price, slow.billable_usage()).expect("a small price");
    assert!(position.settle_receipt(slow), "both have signed");
    let held = i64::try_from(position.held.0 * PRICE.0 / 10_000).unwrap_or(i64::MAX);
    let loss = Loss {
        lost: held + 1_000 - position.gain(Side::Provider),
        gained: position.gain(Side::Buyer),
        reputation: position.reputation_lost(Side::Provider),
    };
    let attack = "a reputation is talked down, a hundred leases".to_owned();
    new_attack_cost(attack, Millis(0), WorstLoss::from_loss(loss), rounds)
}

/// Returns the costs as rows of the table in the market's documentation.
pub fn table_rows(costs: &[AttackCost]) -> impl Iterator<Item = [String; 5]> {
    let row = |cost: &AttackCost| {
        [
            cost.attack.clone(),
            cost.planned_s.to_string(),
            format_seconds(cost.lost_s),
            format_seconds(cost.cost_s),
            cost.reputation_lost.to_string(),
        ]
    };
    costs.iter().map(row)
}

/// Returns whole seconds; a zero has no sign.
fn format_seconds(seconds: f64) -> String {
    let text = format!("{seconds:.0}");
    match text.as_str() {
        "-0" => "0".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the expected bound of the loss: one note's span or a tenth of the job, whichever is
    /// greater.
    fn bound(planned_s: u64) -> f64 {
        (planned_s as f64 / 10.0).max(NOTE_SPAN.0 as f64 / 1_000.0)
    }

    #[test]
    fn an_honest_party_loses_no_more_than_is_promised_and_the_rules_tell_it() {
        let page = include_str!("../../../docs/market.md");
        let costs = search_attacks();
        for cost in &costs {
            assert!(cost.lost_s <= bound(cost.planned_s), "{cost:?}");
            assert_eq!(cost.reputation_lost, 0, "{cost:?}");
            assert!(cost.sequences > 0, "it was played: {cost:?}");
        }
        // What a buyer does costs it as much, but for the half minute in which it may forget to say
        // that the work began.
        let of_buyers = costs.iter().filter(|cost| {
            let by_buyers = [Attack::UnpaidWork, Attack::Holding];
            by_buyers
                .iter()
                .any(|attack| attack.attack_text() == cost.attack)
        });
        for cost in of_buyers {
            assert!(cost.excess_s <= 30.0, "{cost:?}");
        }
        let rows = table_rows(&costs).map(|row| format!("| {} |", row.join(" | ")));
        let missing: Vec<String> = rows.filter(|row| !page.contains(row)).collect();
        assert!(
            missing.is_empty(),
            "docs/market.md lacks\n{}",
            missing.join("\n")
        );
    }

    #[test]
    fn every_field_of_a_receipt_is_falsified() {
        let honest = Position::new().honest_receipt();
        for forged in make_false_receipts(&honest, DeviceMicros(1_000_000)) {
            assert_ne!(forged.body, honest, "{} is false", forged.field);
        }
    }
}
