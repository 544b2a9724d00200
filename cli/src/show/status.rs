//! Prints the state of each validator of a market, or converts it to JSON, for
//! `souk testnet status` and `souk top`.

use serde_json::{Value, json};
use souk_api::member::StatusView;
use souk_network::protocols::market::Status;
use souk_node::client::broker::AttemptError;

use super::{Table, print_line, short_id};
use crate::show::balance::Balances;

/// Returns the state as JSON.
pub fn to_json(statuses: &[Result<Status, AttemptError>], balances: &Balances) -> Value {
    json!({ "validators": validators_json(statuses), "balances": balances.to_json() })
}

/// Returns the validators as a JSON list.
pub fn validators_json(statuses: &[Result<Status, AttemptError>]) -> Value {
    let one = |status: &Result<Status, AttemptError>| match status {
        Ok(status) => json!(StatusView::from(status)),
        Err(error) => json!({ "unreachable": error.to_string() }),
    };
    statuses.iter().map(one).collect()
}

/// Prints the validators and the accounts.
pub fn print_status(statuses: &[Result<Status, AttemptError>], balances: &Balances) {
    print_validators(statuses);
    print_line("");
    super::balance::print_balances(balances);
}

/// Prints the validators.
pub fn print_validators(statuses: &[Result<Status, AttemptError>]) {
    let mut table = Table::new(&[
        "validator",
        "role",
        ">term",
        ">committed",
        ">applied",
        "state digest",
    ]);
    for (number, status) in (1..).zip(statuses) {
        match status {
            Ok(status) => table.add_row([
                format!("{}", status.raft_id),
                status.role.clone(),
                status.term.to_string(),
                status.committed.to_string(),
                status.applied.to_string(),
                short_id(&status.digest),
            ]),
            Err(error) => {
                let blank = String::new;
                let role = "unreachable".to_owned();
                let why = error.to_string();
                table.add_row([format!("{number}"), role, blank(), blank(), blank(), why]);
            }
        }
    }
    table.print();
}
