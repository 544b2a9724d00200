//! One account, and requests for credits in and out.

use souk_node::market::{Account, Direction, MoneyRequest};

use super::{Table, credits, say, short};

/// Prints one account.
pub fn print_account(account: &Account) {
    let lines = [
        ("account", account.key.to_string()),
        ("name", account.name.to_string()),
        ("available", credits(account.available.0)),
        ("in escrow", held(account)),
        ("stake", credits(account.stake.0)),
        ("earned", credits(account.earned.0)),
        ("reputation", account.reputation.score.to_string()),
    ];
    for (what, value) in lines {
        say(&format!("{what:<11} {value}"));
    }
}

/// What is held, and what gives it back.
fn held(account: &Account) -> String {
    let held = credits(account.escrow.0);
    match account.escrow.0 {
        0 => held,
        _ => format!("{held}  (for orders, leases and withdrawals until they are over)"),
    }
}

/// Prints requests that wait for the operator, with whose they are.
pub fn print_requests(requests: &[MoneyRequest], owners: bool) {
    if requests.is_empty() {
        if owners {
            say("no requests wait for the operator");
        }
        return;
    }
    let mut table = Table::new(&[">request", "account", "what", ">amount", "reference"]);
    for request in requests {
        let direction = match request.direction {
            Direction::Deposit => "deposit",
            Direction::Withdrawal => "withdrawal",
        };
        table.row([
            request.id.to_string(),
            short(&request.account),
            direction.to_owned(),
            credits(request.amount.0),
            request.reference.to_string(),
        ]);
    }
    table.print();
}
