//! Prints the history of an account, or converts it to JSON and CSV: every movement of its credits
//! with its cause. It marks gaps, which are movements that the validator has not seen.

use serde_json::{Value, json};
use souk_api::account::{BalancesView, MovementView};
use souk_api::time::format_moment;
use souk_network::protocols::statement::{Statement, StatementLine};
use souk_node::market::{
    AccountKey, Balances, CloseReason, Credits, Direction, Event, MoveReason, OrderEnd,
};

use super::{Table, format_credits, print_line, short_id};

/// The sums of a history.
pub struct HistoryTotals {
    /// Balances before the first movement.
    pub opening: Balances,
    /// Balances after the last movement.
    pub closing: Balances,
    /// Number of gaps between movements, which the validator has not seen; the balances reveal
    /// them.
    pub gaps: usize,
}

impl HistoryTotals {
    /// Sums up lines, the newest first; returns `None` if there are none.
    pub fn from_lines(lines: &[StatementLine]) -> Option<HistoryTotals> {
        let (closing, opening) = (lines.first()?.after, lines.last()?.before);
        let gaps = lines.windows(2).filter(|two| two[1].after != two[0].before);
        Some(HistoryTotals {
            opening,
            closing,
            gaps: gaps.count(),
        })
    }
}

/// Prints a history, the oldest movement first.
pub fn print_history(account: AccountKey, statement: &Statement) {
    let lines = &statement.lines;
    let Some(sums) = HistoryTotals::from_lines(lines) else {
        print_line("no credits of this account have moved, as far as this validator has seen");
        return;
    };
    let mut table = Table::new(&["when (UTC)", ">change", ">held", ">available", "why"])
        .with_spare_columns(&["held"]);
    let opening = &sums.opening;
    table.add_row(format_row(
        "before",
        opening,
        opening,
        "brought forward".to_owned(),
    ));
    let mut known = *opening;
    for line in lines.iter().rev() {
        if line.before != known {
            let why = "movements that are no longer kept".to_owned();
            table.add_row(format_row("", &known, &line.before, why));
        }
        known = line.after;
        let when = format_moment(line.time);
        // The year is this one or the last, so the month suffices.
        let when = when.get(5..).unwrap_or_default().replace('T', " ");
        let (when, _) = when.split_once('.').unwrap_or((&when, ""));
        table.add_row(format_row(
            when.trim_end_matches('Z'),
            &line.before,
            &line.after,
            explain_line(account, line),
        ));
    }
    table.print();
    let closing = &sums.closing;
    print_line(&format!(
        "{} movements come to {} available, {} held, {} at stake",
        lines.len(),
        format_credits(closing.available.0),
        format_credits(closing.escrow.0),
        format_credits(closing.stake.0),
    ));
    if statement.more {
        print_line("older ones: --last N with a larger N");
    }
}

/// Returns a history as JSON, the oldest movement first.
pub fn to_json(account: AccountKey, statement: &Statement) -> Value {
    let one = |line: &StatementLine| {
        let mut value = json!(MovementView::from(line));
        value["why"] = explain_line(account, line).into();
        value
    };
    let sums = HistoryTotals::from_lines(&statement.lines);
    let balances =
        |of: fn(&HistoryTotals) -> &Balances| sums.as_ref().map(of).map(BalancesView::from);
    let movements: Vec<Value> = statement.lines.iter().rev().map(one).collect();
    json!({
        "account": account,
        "opening": balances(|sums| &sums.opening),
        "closing": balances(|sums| &sums.closing),
        "gaps": sums.as_ref().map_or(0, |sums| sums.gaps),
        "older": statement.more,
        "movements": movements,
    })
}

/// The columns of [`csv_row`].
pub const CSV_HEADER: [&str; 11] = [
    "time",
    "entry",
    "offset",
    "part",
    "why",
    "available_change",
    "held_change",
    "stake_change",
    "available",
    "held",
    "stake",
];

/// Returns a movement for a spreadsheet, in micro-credits.
pub fn csv_row(account: AccountKey, line: &StatementLine) -> [String; 11] {
    let StatementLine { before, after, .. } = line;
    let change = |of: fn(&Balances) -> Credits| {
        (i128::from(of(after).0) - i128::from(of(before).0)).to_string()
    };
    [
        format_moment(line.time),
        line.place.index.to_string(),
        line.place.offset.to_string(),
        line.place.part.to_string(),
        explain_line(account, line),
        change(|of| of.available),
        change(|of| of.escrow),
        change(|of| of.stake),
        after.available.to_string(),
        after.escrow.to_string(),
        after.stake.to_string(),
    ]
}

fn format_row(when: &str, before: &Balances, after: &Balances, why: String) -> [String; 5] {
    [
        when.to_owned(),
        format_change(before.available, after.available),
        format_change(before.escrow, after.escrow),
        format_credits(after.available.0),
        why,
    ]
}

fn format_change(before: Credits, after: Credits) -> String {
    match before.cmp(&after) {
        std::cmp::Ordering::Less => format!("+{}", format_credits(after.0 - before.0)),
        std::cmp::Ordering::Equal => String::new(),
        std::cmp::Ordering::Greater => format!("-{}", format_credits(before.0 - after.0)),
    }
}

fn explain_line(account: AccountKey, line: &StatementLine) -> String {
    // A trade of the order already says that it is filled.
    let filled = |event: &&Event| {
        matches!(
            event,
            Event::OrderClosed {
                reason: OrderEnd::Filled,
                ..
            }
        )
    };
    let events = line.causes.iter().filter(|event| !filled(event));
    let is_bought =
        |event: &&Event| matches!(event, Event::LeaseClosed { buyer, .. } if *buyer == account);
    let closed = line.causes.iter().filter(is_bought).count();
    let paid = (closed == 1).then(|| net_cost(line)).flatten();
    let causes = events.filter_map(|event| describe_event(account, event, paid));
    let mut causes: Vec<String> = causes.collect();
    causes.dedup();
    match causes.len() {
        0 => "unknown".to_owned(),
        1..=3 => causes.join("; "),
        more => format!("{}; {}; and {} more", causes[0], causes[1], more - 2),
    }
}

/// Returns how much less an account has after a movement: the held credits that did not come back.
fn net_cost(line: &StatementLine) -> Option<u64> {
    let all = |of: &Balances| [of.available, of.escrow, of.stake].map(|part| u128::from(part.0));
    let sum = |of: &Balances| all(of).into_iter().sum::<u128>();
    let cost = sum(&line.before).checked_sub(sum(&line.after))?;
    u64::try_from(cost).ok()
}

fn describe_event(account: AccountKey, event: &Event, paid: Option<u64>) -> Option<String> {
    Some(match event {
        Event::Moved { reason, .. } => describe_move(*reason).to_owned(),
        Event::Requested(request) => match request.direction {
            Direction::Deposit => return None,
            Direction::Withdrawal => format!("withdrawal {} asked for", request.id),
        },
        Event::Decided {
            request, confirmed, ..
        } => {
            let what = match request.direction {
                Direction::Deposit => "deposit",
                Direction::Withdrawal => "withdrawal",
            };
            let came = if *confirmed { "confirmed" } else { "refused" };
            format!(
                "{what} {} {came}{}",
                request.id,
                quote_reference(request.reference.as_str())
            )
        }
        Event::Transferred {
            from,
            to,
            reference,
            ..
        } => {
            let reference = quote_reference(reference.as_str());
            match *from == account {
                true => format!("given to {}{reference}", short_id(to)),
                false => format!("given by {}{reference}", short_id(from)),
            }
        }
        Event::Rested { order, .. } => format!("order {order} rests"),
        Event::OrderClosed { order, reason, .. } => format!("order {order} {}", order_end(*reason)),
        Event::Traded(trade) => match trade.provider == account {
            true => format!("lease {} sold", trade.lease),
            false => format!("lease {} bought", trade.lease),
        },
        Event::LeaseExtended { lease, .. } => format!("lease {lease} extended"),
        Event::Accused { lease, .. } => format!("bond of a dispute about lease {lease}"),
        Event::DisputeClosed { dispute, lease, .. } => {
            format!("dispute {dispute} about lease {lease} is closed")
        }
        Event::Slashed { lease, .. } => format!("fault proven in lease {lease}"),
        Event::LeaseClosed { .. } => return describe_closing(account, event, paid),
        _ => return None,
    })
}

/// Describes the end of a lease to one of its parties, which paid this if it is the buyer.
fn describe_closing(account: AccountKey, event: &Event, paid: Option<u64>) -> Option<String> {
    Some(match event {
        Event::LeaseClosed {
            lease,
            reason,
            fee,
            buyer,
            provider,
            ..
        } => {
            let end = lease_end(*reason);
            match (*buyer == account, paid, fee.0) {
                (true, Some(0), _) => format!("lease {lease}: nothing paid, {end}"),
                (true, Some(paid), _) if *reason == CloseReason::Receipt => {
                    format!("lease {lease}: paid {}", format_credits(paid))
                }
                (true, Some(paid), _) => {
                    format!("lease {lease}: paid {}, {end}", format_credits(paid))
                }
                (false, _, 1..) if *provider == account => {
                    format!(
                        "lease {lease}: {end}, less a fee of {}",
                        format_credits(fee.0)
                    )
                }
                _ => format!("lease {lease}: {end}"),
            }
        }
        _ => return None,
    })
}

fn describe_move(reason: MoveReason) -> &'static str {
    match reason {
        MoveReason::Credited => "credited by the operator",
        MoveReason::Collected => "the market's earnings",
        MoveReason::Staked => "put at stake",
        MoveReason::Unstaked => "taken back from stake",
        MoveReason::Forfeited => "the account made room for others",
    }
}

fn quote_reference(reference: &str) -> String {
    match reference {
        "" => String::new(),
        text => format!(" \"{text}\""),
    }
}

fn order_end(reason: OrderEnd) -> &'static str {
    match reason {
        OrderEnd::Filled => "filled",
        OrderEnd::Cancelled => "cancelled",
        OrderEnd::Expired => "expired",
        OrderEnd::Unfilled => "not filled",
        OrderEnd::Evicted => "gave way in a full market",
        OrderEnd::Frozen => "out: the account was frozen",
    }
}

fn lease_end(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Receipt => "settled",
        CloseReason::Deadline => "its time was over",
        CloseReason::BuyerEnded => "ended by the buyer",
        CloseReason::GaveUp => "given up",
        CloseReason::Reclaimed => "reclaimed",
        CloseReason::Displaced => "displaced",
        CloseReason::Disputed => "refused",
        CloseReason::BuyerSilent => "notes not answered",
        CloseReason::Resold => "resold",
        CloseReason::Unused => "never begun",
    }
}
