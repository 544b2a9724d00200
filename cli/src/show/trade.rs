//! An account's orders and leases.

use serde_json::{Value, json};
use souk_node::device::class_name;
use souk_node::market::{Acceptance, AccountKey, Lease, OpenOrder, Side, Term};

use super::jobs::lease_state;
use super::{Table, credits, say, short, time_of_day};

/// Orders, for programs.
pub fn orders_json(orders: &[OpenOrder]) -> Value {
    let one = |order: &OpenOrder| {
        let mut value = json!(order);
        value["class_name"] = class_name::of(&order.class).into();
        value
    };
    orders.iter().map(one).collect()
}

/// Orders, for people.
pub fn print_orders(orders: &[OpenOrder]) {
    if orders.is_empty() {
        return say("no orders rest in the books");
    }
    let mut table = Table::new(&[">order", "what", "class", ">price", ">units", ">held"]);
    for order in orders {
        let what = match (order.side, order.resale) {
            (Side::Bid, _) => "bid".to_owned(),
            (Side::Ask, None) => "ask".to_owned(),
            (Side::Ask, Some(lease)) => format!("rest of lease {lease}"),
        };
        table.row([
            order.id.to_string(),
            what,
            class_name::of(&order.class),
            credits(order.price.0),
            order.quantity.to_string(),
            credits(order.held.0),
        ]);
    }
    table.print();
}

/// Leases that an account has a part in.
pub fn print_leases(leases: &[Lease], account: AccountKey) {
    if leases.is_empty() {
        return say("no leases are open");
    }
    let mut table = Table::new(&[
        ">lease",
        "part",
        "device",
        "state",
        ">price",
        ">held",
        "until (UTC)",
    ]);
    for lease in leases {
        let part = match lease.buyer == account {
            true => "bought",
            false => "sold",
        };
        table.row([
            lease.id.to_string(),
            part.to_owned(),
            lease.model.as_str().to_owned(),
            lease_state(&lease.state).to_owned(),
            credits(lease.price.0),
            credits(lease.escrow.0),
            time_of_day(lease.deadline.0),
        ]);
    }
    table.print();
}

/// One lease.
pub fn print_lease(lease: &Lease) {
    let term = match lease.term {
        Term::Firm => "firm".to_owned(),
        Term::Spot => format!("spot, with {} ms notice", lease.notice),
    };
    let mut lines = vec![
        ("lease", lease.id.to_string()),
        ("state", lease_state(&lease.state).to_owned()),
        ("buyer", lease.buyer.to_string()),
        ("provider", lease.provider.to_string()),
        ("device", lease.model.to_string()),
        ("class", class_name::of(&lease.class)),
        (
            "price",
            format!("{} a device-second, {term}", credits(lease.price.0)),
        ),
        ("units", lease.quantity.to_string()),
        ("from", time_of_day(lease.start.0)),
        ("until", time_of_day(lease.deadline.0)),
        ("held", credits(lease.escrow.0)),
        ("paid", credits(lease.cost.0)),
        ("job", short(&lease.job)),
    ];
    if let Some(resale) = &lease.resale {
        lines.push(("resold by", short(&resale.seller)));
    }
    for (what, value) in lines {
        say(&format!("{what:<10} {value}"));
    }
}

/// What an accepted command did, in a line.
pub fn done(done: &Acceptance) -> String {
    match done {
        Acceptance::Ending { at } => format!("it ends at {} UTC", time_of_day(at.0)),
        Acceptance::Closed { paid, refunded, .. } => format!(
            "it is closed: {} paid, {} returned",
            credits(paid.0),
            credits(refunded.0)
        ),
        Acceptance::Extended { deadline, escrow } => format!(
            "it ends at {} UTC now, with {} held",
            time_of_day(deadline.0),
            credits(escrow.0)
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
            "order {order}: {} trades at once, {resting} units rest in the book",
            trades.len()
        ),
        Acceptance::Staked { stake } => format!("{} are at stake", credits(stake.0)),
        other => format!("{other:?}"),
    }
}
