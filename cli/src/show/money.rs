//! Prints an account with its credits, the orders and leases that hold some of them, and its
//! deposits and withdrawals that wait.

use souk_node::market::{Account, AccountKey, Direction, Lease, MoneyRequest, OpenOrder};

use super::{Table, format_credits, held_credits, print_line, short_id};
use crate::suggested_command;

/// Prints one account.
pub fn print_account(account: &Account) {
    let lines = [
        ("account", account.key.to_string()),
        ("name", account.name.to_string()),
        ("available", format_credits(account.available.0)),
        ("in escrow", format_credits(account.escrow.0)),
        ("stake", format_credits(account.stake.0)),
        ("earned", format_credits(account.earned.0)),
        ("reputation", account.reputation.score.to_string()),
    ];
    for (what, value) in lines {
        print_line(&format!("{what:<11} {value}"));
    }
    if let Some(reason) = &account.frozen {
        print_line(&format!(
            "frozen      {reason}: nothing can be placed, staked, given or withdrawn; ask the \
             operators"
        ));
    }
}

/// Prints the orders, leases and requests that hold credits of an account, and the commands that
/// release them.
pub fn print_held(
    account: AccountKey,
    orders: &[OpenOrder],
    leases: &[Lease],
    requests: &[MoneyRequest],
) {
    for order in orders.iter().filter(|order| order.held.0 > 0) {
        let (id, held) = (order.id, format_credits(order.held.0));
        let cancel = suggested_command::market_command(&format!("order cancel {id}"));
        print_line(&format!(
            "  order {id} holds {held} while it rests; to release it:\n    {cancel}"
        ));
    }
    let bought = leases.iter().filter(|lease| lease.buyer == account);
    let bought: Vec<Lease> = bought.cloned().collect();
    held_credits::describe_leases(&bought)
        .iter()
        .for_each(|line| print_line(&format!("  {line}")));
    let out = |request: &&MoneyRequest| request.direction == Direction::Withdrawal;
    for request in requests.iter().filter(out) {
        let (id, held) = (request.id, format_credits(request.amount.0));
        if request.lock.is_some() {
            print_line(&format!(
                "  withdrawal {id} holds {held} and is being paid out: only the operators end it"
            ));
            continue;
        }
        let cancel = suggested_command::market_command(&format!("account cancel {id}"));
        let until = "until the operator decides; to take it back";
        print_line(&format!(
            "  withdrawal {id} holds {held} {until}:\n    {cancel}"
        ));
    }
}

/// Prints the requests that wait for the operator, if there are any.
pub fn print_requests(requests: &[MoneyRequest]) {
    if requests.is_empty() {
        return;
    }
    let mut table = Table::new(&[">request", "account", "what", ">amount", "reference"]);
    for request in requests {
        let direction = match (request.direction, request.lock) {
            (Direction::Deposit, _) => "deposit",
            (Direction::Withdrawal, None) => "withdrawal",
            (Direction::Withdrawal, Some(_)) => "withdrawal, being paid",
        };
        table.add_row([
            request.id.to_string(),
            short_id(&request.account),
            direction.to_owned(),
            format_credits(request.amount.0),
            request.reference.to_string(),
        ]);
    }
    table.print();
}
