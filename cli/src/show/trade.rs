//! Prints orders, leases, and the market's answers to commands on them, for `souk order …`,
//! `souk lease …` and other commands that trade.

use souk_api::class_name;
use souk_api::lease::state_name;
use souk_api::order::ExclusionView;
use souk_node::market::{
    Acceptance, AccountKey, Class, Explanation, Lack, Lease, OpenOrder, Side, Term,
};

use super::{
    Names, Table, account_name, format_count, format_credits, print_line, short_id, time_of_day,
    to_u64,
};
use crate::suggested_command;

/// Prints an order.
pub fn print_order(order: &OpenOrder) {
    let until = match order.expires.0 {
        u64::MAX => "it is cancelled".to_owned(),
        at => format!("{} UTC", time_of_day(at)),
    };
    let lines = [
        ("order", order.id.to_string()),
        ("what", order_kind(order)),
        ("class", class_name::format_class(&order.class)),
        ("", class_name::in_words(&order.class)),
        (
            "price",
            format!("{} a device-second", format_credits(order.price.0)),
        ),
        ("units", order.quantity.to_string()),
        ("held", describe_hold(order)),
        ("until", until),
        (
            "cancel",
            suggested_command::market_command(&format!("order cancel {}", order.id)),
        ),
    ];
    for (name, value) in lines {
        print_line(&format!("{name:<10} {value}"));
    }
}

/// Describes the credits that an order holds, and why.
fn describe_hold(order: &OpenOrder) -> String {
    let held = format_credits(order.held.0);
    match (order.side, order.held.0, order.resale) {
        (Side::Bid, ..) => {
            format!("{held} for what it may buy; it returns with what is not bought")
        }
        (Side::Ask, _, Some(lease)) => format!("{held}: what lease {lease} holds stands for it"),
        (Side::Ask, 0, None) => format!("{held}: an account's first ask is free"),
        (Side::Ask, _, None) => format!("{held} as a deposit; it returns when the order ends"),
    }
}

/// Prints the result of placing an order.
pub fn print_placed(placed: &Acceptance) {
    print_line(&describe_acceptance(placed));
    let Acceptance::Placed {
        order,
        trades,
        resting,
    } = placed
    else {
        return;
    };
    for trade in trades {
        print_line(&format!(
            "  lease {} at {} a second, until {} UTC; {} held",
            trade.lease,
            format_credits(trade.price.0),
            time_of_day(trade.deadline.0),
            format_credits(trade.escrow.0),
        ));
    }
    if resting.0 > 0 {
        let show = suggested_command::market_command(&format!("order show {order}"));
        let cancel = suggested_command::market_command(&format!("order cancel {order}"));
        print_line(&format!(
            "  how it stands: {show}\n  take it back:  {cancel}"
        ));
    }
}

/// Prints the asks that a bid would find, and what rules out the others.
pub fn print_explanation(class: &Class, found: &Explanation) {
    print_line(&format!(
        "{}: {}",
        class_name::format_class(class),
        class_name::in_words(class)
    ));
    print_line(&format!(
        "{} of its kind, {} could be traded with now",
        format_count(found.seen, "ask"),
        found.eligible
    ));
    if found.ruled_out.is_empty() {
        return;
    }
    let mut table = Table::new(&[">asks", "ruled out by", ">wanted", ">nearest"]);
    for one in &found.ruled_out {
        let view = ExclusionView::from(one);
        let name = match view.dtype {
            Some(dtype) => format!("{} of {dtype}", view.lack),
            None => view.lack.to_owned(),
        };
        let is_price = one.lack == Lack::Price || one.lack == Lack::Stake;
        let figure = |figure: u64| match (one.wanted, one.nearest) {
            (0, 0) => String::new(),
            _ if is_price => format_credits(figure),
            _ => figure.to_string(),
        };
        table.add_row([
            one.count.to_string(),
            name.replace('_', " "),
            figure(one.wanted),
            figure(one.nearest),
        ]);
    }
    table.print();
}

fn order_kind(order: &OpenOrder) -> String {
    match (order.side, order.resale) {
        (Side::Bid, _) => "bid".to_owned(),
        (Side::Ask, None) => "ask".to_owned(),
        (Side::Ask, Some(lease)) => format!("rest of lease {lease}"),
    }
}

/// Prints orders.
pub fn print_orders(orders: &[OpenOrder]) {
    if orders.is_empty() {
        return print_line("no orders rest in the books");
    }
    let mut table = Table::new(&[">order", "what", "class", ">price", ">units", ">held"]);
    for order in orders {
        table.add_row([
            order.id.to_string(),
            order_kind(order),
            class_name::format_class(&order.class),
            format_credits(order.price.0),
            order.quantity.to_string(),
            format_credits(order.held.0),
        ]);
    }
    table.print();
}

/// Prints the leases that an account bought or sold.
pub fn print_leases(leases: &[Lease], account: AccountKey, names: &Names) {
    if leases.is_empty() {
        return print_line("no leases are open");
    }
    let mut table = Table::new(&[
        ">lease",
        "part",
        "provider",
        "state",
        ">price",
        ">held",
        "until (UTC)",
    ])
    .with_spare_columns(&["price", "part"]);
    for lease in leases {
        let part = match lease.buyer == account {
            true => "bought",
            false => "sold",
        };
        table.add_row([
            lease.id.to_string(),
            part.to_owned(),
            account_name(&lease.provider, names),
            state_name(&lease.state).to_owned(),
            format_credits(lease.price.0),
            format_credits(lease.escrow.0),
            time_of_day(lease.deadline.0),
        ]);
    }
    table.print();
}

/// Prints a lease.
pub fn print_lease(lease: &Lease, names: &Names) {
    let term = match lease.term {
        Term::Firm => "firm".to_owned(),
        Term::Spot => format!("spot, with {} ms notice", lease.notice),
    };
    let mut lines = vec![
        ("lease", lease.id.to_string()),
        ("state", state_name(&lease.state).to_owned()),
        ("buyer", lease.buyer.to_string()),
        ("provider", account_name(&lease.provider, names)),
        ("account", lease.provider.to_string()),
        ("class", class_name::format_class(&lease.class)),
        (
            "price",
            format!("{} a device-second, {term}", format_credits(lease.price.0)),
        ),
        ("units", lease.quantity.to_string()),
        ("from", time_of_day(lease.start.0)),
        ("until", time_of_day(lease.deadline.0)),
        ("held", format_credits(lease.escrow.0)),
        ("paid", format_credits(lease.cost.0)),
        ("job", short_id(&lease.job)),
    ];
    let work = match (lease.work_started, lease.reserved_until) {
        (true, _) => "begun".to_owned(),
        (false, None) => "not begun in the log".to_owned(),
        (false, Some(until)) => format!(
            "not begun: `souk lease start {0}` or `end {0}` by {1} UTC, or the reserve is due",
            lease.id,
            time_of_day(until.0)
        ),
    };
    lines.push(("work", work));
    if let Some(resale) = &lease.resale {
        lines.push(("resold by", short_id(&resale.seller)));
    }
    for (what, value) in lines {
        print_line(&format!("{what:<10} {value}"));
    }
}

/// Describes the result of an accepted command in a line.
pub fn describe_acceptance(done: &Acceptance) -> String {
    match done {
        Acceptance::Started => "its work has begun: notes of its use count".to_owned(),
        Acceptance::Ending { at } => format!("it ends at {} UTC", time_of_day(at.0)),
        Acceptance::Closed { paid, refunded, .. } => format!(
            "it is closed: {} paid, {} returned",
            format_credits(paid.0),
            format_credits(refunded.0)
        ),
        Acceptance::Extended { deadline, escrow } => format!(
            "it ends at {} UTC now, with {} held",
            time_of_day(deadline.0),
            format_credits(escrow.0)
        ),
        Acceptance::Placed {
            order,
            trades,
            resting,
        }
        | Acceptance::Amended {
            order,
            trades,
            resting,
        } => format!(
            "order {order}: {} at once, {} in the book",
            format_count(to_u64(trades.len()), "trade"),
            format_count(resting.0, "unit"),
        ),
        Acceptance::Staked { stake } => format!("{} are at stake", format_credits(stake.0)),
        Acceptance::Slashed {
            slashed,
            compensated,
        } => format!(
            "the fault is proven: the provider lost {} of its stake, of which {} are the buyer's",
            format_credits(slashed.0),
            format_credits(compensated.0)
        ),
        other => format!("{other:?}"),
    }
}
