//! `souk operator …`: shows and carries out the decisions of a market's operators, the accounts
//! that create credits, name validators and change rules. Some commands take effect only when
//! several operators have approved them.

mod decide;
mod payouts;
mod reconcile;
mod rules;

use std::path::Path;

use serde_json::json;
use souk_api::account::MoneyRequestView;
use souk_api::time::format_moment;
use souk_node::client::trader::Trader;
use souk_node::market::{Acceptance, Command, Credits, Name, RequestId};

use super::account::{connect_trader, from_trade, out_of_turn, short_text};
use super::validator::operator_key;
use crate::args::{Operator, OperatorKey, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, unreachable_market};
use crate::show;
use crate::suggested_command;

/// Name of an operator's account.
const NAME: &str = "operator";

/// Runs a command of the operators.
pub async fn run(folder: &Path, output: Output, command: Operator) -> Outcome {
    match command {
        Operator::Requests => list_requests(folder, output).await,
        Operator::Decide(args) => decide::run(folder, output, &args).await,
        Operator::Reconcile { file } => reconcile::run(folder, output, &file).await,
        Operator::Pending => rules::list_pending_commands(folder, output).await,
        Operator::Rules(command) => rules::run(folder, output, command).await,
        Operator::Upgrade {
            to,
            notice,
            force,
            key,
        } => rules::announce_upgrade(folder, output, to, notice, force, &key).await,
        Operator::Confirm { requests, key } => {
            let operator = connect_operator(folder, &key).await?;
            confirm_requests(&operator, output, requests).await
        }
        Operator::Lock { requests, key } => {
            let operator = connect_operator(folder, &key).await?;
            lock_withdrawals(&operator, output, requests).await
        }
        Operator::Approve { command, key } => approve_command(folder, output, command, &key).await,
        Operator::Refuse {
            request,
            reason,
            key,
        } => {
            let reason = short_text("the reason", &reason)?;
            let request = RequestId(request);
            let facts = json!({ "request": request, "state": "refused" });
            let text = format!("request {request} is refused");
            let refuse = Command::Refuse { request, reason };
            submit_and_report(folder, output, &key, refuse, facts, text).await
        }
        Operator::Credit {
            account,
            amount,
            key,
        } => {
            let facts = json!({ "account": account, "amount": amount });
            let text = format!("credited {} to {account}", show::format_credits(amount));
            let amount = Credits(amount);
            let credit = Command::Deposit { account, amount };
            submit_and_report(folder, output, &key, credit, facts, text).await
        }
        Operator::Freeze {
            account,
            reason,
            key,
        } => {
            let reason = short_text("the reason", &reason)?;
            let facts = json!({ "account": account, "state": "frozen", "reason": reason });
            let text = format!("{account} is frozen: {reason}");
            let freeze = Command::Freeze { account, reason };
            submit_and_report(folder, output, &key, freeze, facts, text).await
        }
        Operator::Thaw { account, key } => {
            let facts = json!({ "account": account, "state": "thawed" });
            let text = format!("{account} is thawed");
            let thaw = Command::Thaw { account };
            submit_and_report(folder, output, &key, thaw, facts, text).await
        }
        Operator::Collect { amount, key } => collect_earnings(folder, output, amount, &key).await,
    }
}

/// Submits a command of the operators and reports that it is done.
async fn submit_and_report(
    folder: &Path,
    output: Output,
    key: &OperatorKey,
    command: Command,
    facts: serde_json::Value,
    text: String,
) -> Outcome {
    let operator = connect_operator(folder, key).await?;
    if submit_command(&operator, output, command).await?.is_some() {
        show::print_result(output, &facts, &text);
    }
    Ok(())
}

/// Submits a command of the operators. If more of them must approve it, reports that and returns
/// `None`.
async fn submit_command(
    operator: &Trader,
    output: Output,
    command: Command,
) -> Result<Option<Acceptance>, Failure> {
    let done = operator.submit_one(command).await.map_err(from_trade)?;
    let Acceptance::Awaited {
        approval,
        given,
        needed,
        until,
    } = done
    else {
        return Ok(Some(done));
    };
    let facts = json!({
        "state": "awaited", "command": approval, "approvals": given, "approvals_needed": needed,
        "until": format_moment(until),
    });
    let approve = suggested_command::market_command(&format!("operator approve {approval}"));
    let text = format!(
        "command {approval} has {given} of {needed} operators: it is carried out once as many \
         have given it, and forgotten after a day\n  another operator gives it with: {approve}"
    );
    show::print_result(output, &facts, &text);
    Ok(None)
}

async fn collect_earnings(
    folder: &Path,
    output: Output,
    amount: u64,
    key: &OperatorKey,
) -> Outcome {
    let operator = connect_operator(folder, key).await?;
    let collect = Command::Collect {
        to: operator.account(),
        amount: Credits(amount),
    };
    let given = submit_command(&operator, output, collect).await;
    let Some(done) = given.map_err(with_earnings)? else {
        return Ok(());
    };
    let Acceptance::Collected { available } = done else {
        return Err(out_of_turn(&done));
    };
    let facts = json!({ "amount": amount, "available": available });
    let (taken, now) = (
        show::format_credits(amount),
        show::format_credits(available.0),
    );
    let text = format!("collected {taken}; the operator has {now} available");
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Points the operator to the market's earnings if the command asks for more than these.
fn with_earnings(mut failure: Failure) -> Failure {
    if failure.facts.contains(&("refusal", "funds_short".into())) {
        failure.hint = format!(
            "what the market has earned: {}",
            suggested_command::market_command("balance")
        );
    }
    failure
}

async fn approve_command(folder: &Path, output: Output, id: u64, key: &OperatorKey) -> Outcome {
    let broker = connect_broker(folder).await?;
    let found = broker
        .fetch_governance()
        .await
        .map_err(unreachable_market)?;
    let found = found.approvals.into_iter().find(|one| one.id == id);
    let Some(approval) = found else {
        let cause = format!("no command {id} waits for operators: it was done, or is forgotten");
        let hint = format!(
            "waiting commands: {}",
            suggested_command::market_command("operator pending")
        );
        return Err(Failure::new(Kind::State, cause, hint));
    };
    let text = format!(
        "command {id} is done: {}",
        show::governance::describe_command(&approval.command)
    );
    let facts = json!({ "command": id, "state": "done" });
    submit_and_report(folder, output, key, approval.command, facts, text).await
}

async fn list_requests(folder: &Path, output: Output) -> Outcome {
    let broker = connect_broker(folder).await?;
    let requests = broker.money_requests(None).await;
    let requests = requests.map_err(unreachable_market)?;
    match output {
        Output::Json => {
            let views: Vec<_> = requests.iter().map(MoneyRequestView::from).collect();
            show::print_json(&views);
        }
        Output::Text if requests.is_empty() => {
            show::print_line("no requests wait for the operator");
        }
        Output::Text => show::money::print_requests(&requests),
    }
    Ok(())
}

/// Locks withdrawals one by one in their order, so that the operator can pay them.
async fn lock_withdrawals(operator: &Trader, output: Output, requests: Vec<u64>) -> Outcome {
    for request in requests.into_iter().map(RequestId) {
        let done = submit_command(operator, output, Command::Lock { request }).await;
        let done = done.map_err(|failure| failure.with([("request", json!(request))]))?;
        let Some(done) = done else { continue };
        let Acceptance::Locked(lock) = done else {
            return Err(out_of_turn(&done));
        };
        let facts = json!({ "request": request, "state": "locked", "payer": lock.payer });
        let confirm = suggested_command::market_command(&format!("operator confirm {request}"));
        let text = format!(
            "withdrawal {request} is locked: its account can't take it back; pay it, then confirm \
             it:\n  {confirm}"
        );
        show::print_result(output, &facts, &text);
    }
    Ok(())
}

/// Confirms requests one by one in their order; those already confirmed will stay so if the market
/// refuses another.
async fn confirm_requests(operator: &Trader, output: Output, requests: Vec<u64>) -> Outcome {
    let mut confirmed = Vec::new();
    for request in requests.into_iter().map(RequestId) {
        let done = submit_command(operator, output, Command::Confirm { request }).await;
        let done = done.map_err(|failure| {
            failure.with([("confirmed", json!(confirmed)), ("request", json!(request))])
        })?;
        let Some(done) = done else { continue };
        let Acceptance::Confirmed { available } = done else {
            return Err(out_of_turn(&done));
        };
        if output == Output::Text {
            let left = show::format_credits(available.0);
            let what = format!("request {request} is confirmed");
            show::print_line(&format!("{what}; its account has {left} available"));
        }
        confirmed.push(json!({ "request": request, "available": available }));
    }
    if output == Output::Json && !confirmed.is_empty() {
        show::print_json(&json!({ "state": "confirmed", "confirmed": confirmed }));
    }
    Ok(())
}

/// Returns a trader for the market's operator, and opens the account if necessary.
async fn connect_operator(folder: &Path, key: &OperatorKey) -> Result<Trader, Failure> {
    let key = operator_key(folder, key.operator_key.as_deref())?;
    let operator = connect_trader(folder, key).await?;
    let name = Name::try_from(NAME).expect("it is short");
    operator.register_account(name).await.map_err(from_trade)?;
    Ok(operator)
}
