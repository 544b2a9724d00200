//! `souk operator …`: credits come into a market and go out of it as its operator says.

use std::path::Path;

use serde_json::json;
use souk_node::client::trader::Trader;
use souk_node::market::{Acceptance, Command, Credits, Name, RequestId};

use super::account::{from_trade, out_of_turn, short_text, trader};
use super::validator::operator_key;
use crate::args::{Operator, OperatorKey, Output};
use crate::failure::{Failure, Outcome};
use crate::folder::{look, unreachable_market};
use crate::show;

/// The name under which an operator's account is open.
const NAME: &str = "operator";

/// Carries out a command of the operator.
pub async fn run(folder: &Path, output: Output, command: Operator) -> Outcome {
    match command {
        Operator::Requests => requests(folder, output).await,
        Operator::Confirm { requests, key } => {
            let operator = operator(folder, &key).await?;
            confirm(&operator, output, requests).await
        }
        Operator::Refuse {
            request,
            reason,
            key,
        } => {
            let refuse = Command::Refuse {
                request: RequestId(request),
                reason: short_text("the reason", &reason)?,
            };
            let operator = operator(folder, &key).await?;
            operator.submit_one(refuse).await.map_err(from_trade)?;
            let facts = json!({ "request": request, "is": "refused" });
            show::line(output, &facts, &format!("request {request} is refused"));
            Ok(())
        }
        Operator::Credit {
            account,
            amount,
            key,
        } => {
            let credit = Command::Deposit {
                account,
                amount: Credits(amount),
            };
            let operator = operator(folder, &key).await?;
            operator.submit_one(credit).await.map_err(from_trade)?;
            let facts = json!({ "account": account, "micro_credits": amount });
            let text = format!("credited {} to {account}", show::credits(amount));
            show::line(output, &facts, &text);
            Ok(())
        }
        Operator::Collect { amount, key } => {
            let collect = Command::Collect {
                amount: Credits(amount),
            };
            let operator = operator(folder, &key).await?;
            let done = operator.submit_one(collect).await.map_err(from_trade)?;
            let Acceptance::Collected { available } = done else {
                return Err(out_of_turn(&done));
            };
            let facts = json!({ "micro_credits": amount, "available_micro_credits": available });
            let (taken, now) = (show::credits(amount), show::credits(available.0));
            let text = format!("collected {taken}; the operator has {now} available");
            show::line(output, &facts, &text);
            Ok(())
        }
    }
}

async fn requests(folder: &Path, output: Output) -> Outcome {
    let broker = look(folder).await?;
    let requests = broker.money_requests(None).await;
    let requests = requests.map_err(unreachable_market)?;
    match output {
        Output::Json => show::json(&requests),
        Output::Text => show::money::print_requests(&requests, true),
    }
    Ok(())
}

/// Confirms requests one by one in their order: what is confirmed stays so if another is refused.
async fn confirm(operator: &Trader, output: Output, requests: Vec<u64>) -> Outcome {
    let mut confirmed = Vec::new();
    for request in requests.into_iter().map(RequestId) {
        let done = operator.submit_one(Command::Confirm { request }).await;
        let done = done.map_err(|error| {
            let facts = [("confirmed", json!(confirmed)), ("request", json!(request))];
            from_trade(error).with(facts)
        })?;
        let Acceptance::Confirmed { available } = done else {
            return Err(out_of_turn(&done));
        };
        if output == Output::Text {
            let left = show::credits(available.0);
            let what = format!("request {request} is confirmed");
            show::say(&format!("{what}; its account has {left} available"));
        }
        confirmed.push(json!({ "request": request, "available_micro_credits": available }));
    }
    if output == Output::Json {
        show::json(&json!({ "is": "confirmed", "confirmed": confirmed }));
    }
    Ok(())
}

/// Trades as the market's operator, whose account is opened if it is not.
async fn operator(folder: &Path, key: &OperatorKey) -> Result<Trader, Failure> {
    let key = operator_key(folder, key.operator_key.as_deref())?;
    let operator = trader(folder, key).await?;
    let name = Name::try_from(NAME).expect("it is short");
    operator.register(name).await.map_err(from_trade)?;
    Ok(operator)
}
