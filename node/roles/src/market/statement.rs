//! Defines an account's statement, the history of its credits: one line for each change of its
//! balance, with the events that caused it. A validator collects the lines; clients and the gateway
//! read them.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Balances, Event, Millis};

/// The place of an event in the log: the entry, the command in that entry, and the number of the
/// movement that the command caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPlace {
    /// The entry.
    pub index: u64,
    /// The command inside it.
    pub offset: u32,
    /// Which of its movements.
    pub part: u32,
}

impl LogPlace {
    /// A place behind all others.
    pub const LAST: Self = Self {
        index: u64::MAX,
        offset: u32::MAX,
        part: u32::MAX,
    };
}

/// One movement of an account's credits. `before` is the last movement's `after`, unless some in
/// between are not known any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementLine {
    /// Where in the log.
    pub place: LogPlace,
    /// The log's time.
    pub time: Millis,
    /// The balances before the movement.
    pub before: Balances,
    /// The balances after the movement.
    pub after: Balances,
    /// The events that caused it, in order; at most [`CAUSES_MAX`].
    pub causes: Vec<Event>,
}

/// Lines of one account, and whether there are older ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// The newest first.
    pub lines: Vec<StatementLine>,
    /// Whether lines before these are kept.
    pub more: bool,
}

/// Whose statement has a line for each request that was decided, with the request, and no balances:
/// the market's own, which nobody signs for.
pub const DECISIONS: AccountKey = AccountKey([0; 32]);

/// Causes of one line: a large order can trade with thousands.
pub const CAUSES_MAX: usize = 64;

/// Lines in one answer.
pub const LINES_MAX: usize = 512;

/// The movements that one step of the log made. Events come in groups: what a command or time did,
/// then the balances that it changed.
#[must_use]
pub fn statement_lines(
    index: u64,
    offset: u32,
    time: Millis,
    events: &[Event],
) -> Vec<(AccountKey, StatementLine)> {
    let mut lines = Vec::new();
    let mut group = 0..0;
    for (at, event) in events.iter().enumerate() {
        let Event::Balance {
            account,
            before,
            after,
        } = event
        else {
            if let Event::Decided { .. } = event {
                let part = u32::try_from(lines.len()).unwrap_or(u32::MAX);
                let place = LogPlace {
                    index,
                    offset,
                    part,
                };
                let line = StatementLine {
                    place,
                    time,
                    before: Balances::default(),
                    after: Balances::default(),
                    causes: vec![event.clone()],
                };
                lines.push((DECISIONS, line));
            }
            let begins = at > 0 && matches!(events[at - 1], Event::Balance { .. });
            group = if begins {
                at..at + 1
            } else {
                group.start..at + 1
            };
            continue;
        };
        let part = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        let place = LogPlace {
            index,
            offset,
            part,
        };
        let causes = movement_causes(*account, &events[group.clone()]);
        let (before, after) = (*before, *after);
        let line = StatementLine {
            place,
            time,
            before,
            after,
            causes,
        };
        lines.push((*account, line));
    }
    lines
}

/// Those of the events that moved credits of an account. Who resold a lease is paid when it closes,
/// and is not named then: where none names the account, all count.
fn movement_causes(account: AccountKey, events: &[Event]) -> Vec<Event> {
    let moving = || events.iter().filter(|event| moves_credits(event));
    let own = moving().filter(|event| event.involved_accounts().any(|named| named == account));
    let own: Vec<Event> = own.take(CAUSES_MAX).cloned().collect();
    match own.is_empty() {
        true => moving().take(CAUSES_MAX).cloned().collect(),
        false => own,
    }
}

fn moves_credits(event: &Event) -> bool {
    match event {
        Event::Moved { .. }
        | Event::Requested(_)
        | Event::Decided { .. }
        | Event::Transferred { .. }
        | Event::Rested { .. }
        | Event::OrderClosed { .. }
        | Event::Traded(_)
        | Event::LeaseExtended { .. }
        | Event::Slashed { .. }
        | Event::Accused { .. }
        | Event::DisputeClosed { .. }
        | Event::LeaseClosed { .. } => true,
        Event::Registered { .. }
        | Event::Locked(_)
        | Event::Forgotten { .. }
        | Event::Approved { .. }
        | Event::Frozen { .. }
        | Event::Thawed { .. }
        | Event::RulesDue { .. }
        | Event::RulesChanged { .. }
        | Event::RulesKept { .. }
        | Event::UpgradeDue(_)
        | Event::Upgraded { .. }
        | Event::Balance { .. }
        | Event::WorkStarted { .. }
        | Event::ProviderReady { .. }
        | Event::Note { .. }
        | Event::LeaseEnding { .. }
        | Event::LeaseEnded { .. }
        | Event::LeaseStarted { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{Credits, MoveReason, OrderEnd, OrderId};

    use super::*;

    fn available(credits: u64) -> Balances {
        Balances {
            available: Credits(credits),
            ..Balances::default()
        }
    }

    fn moved(account: AccountKey, amount: u64) -> Event {
        Event::Moved {
            account,
            reason: MoveReason::Credited,
            amount: Credits(amount),
        }
    }

    fn balance(account: AccountKey, before: u64, after: u64) -> Event {
        Event::Balance {
            account,
            before: available(before),
            after: available(after),
        }
    }

    #[test]
    fn each_movement_has_its_own_causes() {
        let (ann, bob) = (AccountKey([1; 32]), AccountKey([2; 32]));
        let (order, reason) = (OrderId(9), OrderEnd::Cancelled);
        let closed = Event::OrderClosed {
            account: bob,
            order,
            reason,
        };
        let events = [
            moved(ann, 5),
            balance(ann, 0, 5),
            Event::Registered { account: bob },
            closed.clone(),
            balance(ann, 5, 6),
            balance(bob, 3, 4),
        ];
        let lines = statement_lines(7, 2, Millis(11), &events);
        let causes = |at: usize| lines[at].1.causes.as_slice();
        let keys: Vec<AccountKey> = lines.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [ann, ann, bob]);
        assert_eq!(causes(0), [moved(ann, 5)]);
        assert_eq!(causes(2), [closed]);
        assert_eq!(causes(1), causes(2), "nothing names her: all count");
        let parts: Vec<u32> = lines.iter().map(|(_, line)| line.place.part).collect();
        assert_eq!(parts, [0, 1, 2]);
    }
}
