//! `souk account …`: opens an account of a market, shows it, and moves its credits.

mod prove;

use std::path::{Path, PathBuf};

use serde_json::json;
use souk_api::account::{AccountView, MoneyRequestView};
use souk_api::order::OrderView;
use souk_folder::config::{KEY_FILE, ProviderFile};
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_node::client::trader::{TradeError, Trader};
use souk_node::market::{
    Acceptance, AccountKey, Command, Credits, Direction, Name, Refusal, RequestId,
};

use super::key::from_key;
use crate::args::{Account, Movement, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{account_folder, connect_broker, from_config, unreachable_market};
use crate::{show, suggested_command};

/// Runs a command on accounts.
pub async fn run(folder: &Path, output: Output, command: Account) -> Outcome {
    match command {
        Account::New { name } => open_account(folder, output, name).await,
        Account::Show { account } => show_account(folder, output, account).await,
        Account::History { account, last, csv } => {
            show_history(folder, output, account, last, csv).await
        }
        Account::Prove {
            account,
            proof_output,
        } => prove::prove_account(folder, output, account, proof_output.as_deref()).await,
        Account::Verify { file, account } => prove::verify_proof(folder, output, &file, account),
        Account::Deposit(movement) => {
            request_movement(folder, output, Direction::Deposit, &movement).await
        }
        Account::Withdraw(movement) => {
            request_movement(folder, output, Direction::Withdrawal, &movement).await
        }
        Account::Transfer { to, movement } => transfer_credits(folder, output, to, &movement).await,
        Account::Cancel { request } => cancel_request(folder, output, request).await,
        Account::Stake { amount } => {
            let amount = Credits(amount);
            submit_stake(folder, output, Command::Stake { amount }).await
        }
        Account::Unstake { amount } => {
            let amount = Credits(amount);
            submit_stake(folder, output, Command::Unstake { amount }).await
        }
    }
}

async fn open_account(folder: &Path, output: Output, name: Option<String>) -> Outcome {
    let account = opened_trader(folder, name).await?.account();
    let key_file = own_key_file(folder);
    let facts = json!({ "account": account, "dir": key_file.parent() });
    let text = format!(
        "account {account} is open; its key is {}\n\
         ask for credits:  {}",
        key_file.display(),
        suggested_command::market_command("account deposit AMOUNT --reference TEXT"),
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Returns a trader for the account of `--dir`, and opens the account if necessary. A provider's
/// folder has the provider's own account, under the provider's name.
pub async fn opened_trader(folder: &Path, name: Option<String>) -> Result<Trader, Failure> {
    MarketFile::read_nearest(folder).map_err(from_config)?;
    let provider = ProviderFile::read_folder(folder).ok().map(|file| file.name);
    let key_file = match provider {
        Some(_) => own_key_file(folder),
        None => account_folder(folder).join(KEY_FILE),
    };
    let key = NodeKey::load_or_create(&key_file).map_err(from_key)?;
    let text = name.or(provider).or_else(|| std::env::var("USER").ok());
    let name = short_text("--name", &text.unwrap_or_else(|| "buyer".to_owned()))?;
    let trader = connect_trader(folder, key).await?;
    trader.register_account(name).await.map_err(from_trade)?;
    Ok(trader)
}

async fn show_account(folder: &Path, output: Output, account: Option<AccountKey>) -> Outcome {
    let account = match account {
        Some(account) => account,
        None => own_account(folder)?,
    };
    let broker = connect_broker(folder).await?;
    let held = broker
        .fetch_account(account)
        .await
        .map_err(unreachable_market)?;
    let held = held.ok_or_else(|| {
        let cause = format!("the market has no account {account}");
        Failure::new(Kind::State, cause, "`souk account new` opens that of --dir")
    })?;
    let requests = broker.money_requests(Some(account)).await;
    let requests = requests.map_err(unreachable_market)?;
    let orders = broker
        .fetch_orders(account)
        .await
        .map_err(unreachable_market)?;
    let leases = broker
        .fetch_leases(account)
        .await
        .map_err(unreachable_market)?;
    match output {
        Output::Json => show::print_json(&json!({
            "account": AccountView::from(&held),
            "requests": requests.iter().map(MoneyRequestView::from).collect::<Vec<_>>(),
            "escrow_by_lease": show::held_credits::to_json(&leases),
            "orders": orders.iter().map(OrderView::from).collect::<Vec<_>>(),
        })),
        Output::Text => {
            show::money::print_account(&held);
            show::money::print_held(account, &orders, &leases, &requests);
            show::money::print_requests(&requests);
        }
    }
    Ok(())
}

async fn show_history(
    folder: &Path,
    output: Output,
    account: Option<AccountKey>,
    last: usize,
    csv: bool,
) -> Outcome {
    let account = account.map_or_else(|| own_account(folder), Ok)?;
    let broker = connect_broker(folder).await?;
    let statement = broker.fetch_statement(account, last).await;
    let statement = statement.map_err(unreachable_market)?;
    match output {
        _ if csv => {
            let mut rows = csv::Writer::from_writer(std::io::stdout().lock());
            let header = rows.write_record(show::history::CSV_HEADER);
            let lines = statement.lines.iter().rev();
            let written = header.and_then(|()| {
                let mut each = lines.map(|line| show::history::csv_row(account, line));
                each.try_for_each(|row| rows.write_record(row))
            });
            // A reader that went away is no reason to fail.
            drop(written.and_then(|()| Ok(rows.flush()?)));
        }
        Output::Json => show::print_json(&show::history::to_json(account, &statement)),
        Output::Text => show::history::print_history(account, &statement),
    }
    Ok(())
}

async fn request_movement(
    folder: &Path,
    output: Output,
    direction: Direction,
    movement: &Movement,
) -> Outcome {
    let request = Command::Request {
        direction,
        amount: Credits(movement.amount),
        reference: short_text("--reference", &movement.reference)?,
    };
    let trader = match direction {
        Direction::Deposit => opened_trader(folder, None).await?,
        Direction::Withdrawal => own_trader(folder).await?,
    };
    let done = trader.submit_one(request).await.map_err(from_trade)?;
    let Acceptance::Requested { request } = done else {
        return Err(out_of_turn(&done));
    };
    let facts = json!({ "request": request, "amount": movement.amount });
    let amount = show::format_credits(movement.amount);
    let text = match direction {
        Direction::Deposit => {
            format!("request {request}: {amount} credits come once the operator confirms it")
        }
        Direction::Withdrawal => format!(
            "request {request}: {amount} credits are held until the operator confirms that they \
             were paid out\nto take it back:  {}",
            suggested_command::market_command(&format!("account cancel {request}")),
        ),
    };
    show::print_result(output, &facts, &text);
    Ok(())
}

async fn transfer_credits(
    folder: &Path,
    output: Output,
    to: AccountKey,
    movement: &Movement,
) -> Outcome {
    let transfer = Command::Transfer {
        to,
        amount: Credits(movement.amount),
        reference: short_text("--reference", &movement.reference)?,
    };
    let trader = own_trader(folder).await?;
    let done = trader.submit_one(transfer).await.map_err(from_trade)?;
    let Acceptance::Transferred { available } = done else {
        return Err(out_of_turn(&done));
    };
    let facts = json!({
        "to": to, "amount": movement.amount, "available": available,
    });
    let (given, left) = (
        show::format_credits(movement.amount),
        show::format_credits(available.0),
    );
    show::print_result(
        output,
        &facts,
        &format!("gave {given} to {to}; {left} are available"),
    );
    Ok(())
}

async fn cancel_request(folder: &Path, output: Output, request: u64) -> Outcome {
    let trader = own_trader(folder).await?;
    let refuse = Command::Refuse {
        request: RequestId(request),
        reason: short_text("the reason", "taken back")?,
    };
    trader.submit_one(refuse).await.map_err(from_trade)?;
    let facts = json!({ "request": request, "state": "cancelled" });
    show::print_result(output, &facts, &format!("request {request} is taken back"));
    Ok(())
}

async fn submit_stake(folder: &Path, output: Output, command: Command) -> Outcome {
    let trader = own_trader(folder).await?;
    let done = trader.submit_one(command).await.map_err(from_trade)?;
    let Acceptance::Staked { stake } = done else {
        return Err(out_of_turn(&done));
    };
    let text = show::trade::describe_acceptance(&done);
    show::print_result(output, &json!({ "stake": stake }), &text);
    Ok(())
}

/// Returns the path of the account's key: that of the folder's jobs, or that of the node whose
/// folder it is.
fn own_key_file(folder: &Path) -> PathBuf {
    let (own, node) = (account_folder(folder).join(KEY_FILE), folder.join(KEY_FILE));
    match !own.exists() && node.exists() {
        true => node,
        false => own,
    }
}

fn own_key(folder: &Path) -> Result<NodeKey, Failure> {
    NodeKey::load(&own_key_file(folder)).map_err(|error| {
        let hint = "`souk account new` makes an account in --dir";
        Failure::new(Kind::State, error, hint)
    })
}

/// Returns the account of a folder.
pub fn own_account(folder: &Path) -> Result<AccountKey, Failure> {
    Ok(AccountKey(own_key(folder)?.public_key()))
}

/// Returns a trader for the account of a folder.
pub async fn own_trader(folder: &Path) -> Result<Trader, Failure> {
    connect_trader(folder, own_key(folder)?).await
}

/// Returns a trader with this key, in the market of `folder`.
pub async fn connect_trader(folder: &Path, key: NodeKey) -> Result<Trader, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let broker = connect_broker(folder).await?;
    Ok(Trader::new(key, market.genesis.market_id(), broker))
}

/// Converts a text to a name. It must be one short line, or the market would refuse it.
pub fn short_text(what: &str, text: &str) -> Result<Name, Failure> {
    Name::try_from(text).map_err(|fault| {
        let cause = format!("{what} \"{text}\": {fault}");
        Failure::new(Kind::Input, cause, "give a shorter text of one line")
    })
}

/// Converts a failure to trade.
pub fn from_trade(error: TradeError) -> Failure {
    match error {
        TradeError::Broker(error) => unreachable_market(error),
        TradeError::Uncertain(_) | TradeError::Endowment { .. } => {
            let hint = format!(
                "after a minute this shows whether it happened; check it first: {}",
                suggested_command::market_command("account show")
            );
            Failure::new(Kind::Network, error, hint)
        }
        TradeError::Refused(ref refusal) => {
            let (hint, code) = (refusal_hint(refusal), refusal.code());
            Failure::new(Kind::State, error, hint).with([("refusal", code.into())])
        }
        TradeError::TooLarge { .. } | TradeError::Invalid(_) => {
            Failure::new(Kind::Unexpected, error, "is it another version of souk?")
        }
    }
}

/// Returns the hint for a refusal: a command that shows more, or solves the problem.
fn refusal_hint(refusal: &Refusal) -> String {
    let look =
        |what: &str, words: &str| format!("{what}: {}", suggested_command::market_command(words));
    match refusal {
        Refusal::AccountUnknown { .. } => look("open it", "account new"),
        Refusal::FundsShort { .. } | Refusal::StakeHeld { .. } | Refusal::StakeShort { .. } => {
            look(
                "what is available, and what each hold is for",
                "account show",
            )
        }
        Refusal::DepositShort { .. } => {
            look("orders of this account, and what each holds", "order list")
        }
        Refusal::AccountFrozen { .. } | Refusal::CapReached { .. } => {
            look("the account's state", "account show")
        }
        Refusal::RuleFixed { .. } | Refusal::RuleRange { .. } | Refusal::NoticeShort { .. } => {
            look("the rules, and which can change", "operator rules show")
        }
        Refusal::ChangeUnknown { .. } | Refusal::ChangesMany { .. } => {
            look("pending changes", "operator rules list")
        }
        Refusal::ApprovalsMany { .. } => look("waiting commands", "operator pending"),
        Refusal::RequestUnknown { .. } => look("open requests", "operator requests"),
        Refusal::RequestLocked { .. } => look("its state", "operator requests"),
        Refusal::RequestUnlocked { request } => {
            look("lock it, then pay", &format!("operator lock {request}"))
        }
        Refusal::ClassUnknown { .. } => look("classes that were offered", "book"),
        Refusal::OrderUnknown { .. }
        | Refusal::OrderNotYours { .. }
        | Refusal::OrdersMany { .. }
        | Refusal::ResaleFixed { .. } => look("orders of this account", "order list"),
        Refusal::LeaseUnknown { .. } => look("leases of this account", "lease list"),
        Refusal::LeaseClosed { lease, .. }
        | Refusal::LeaseEnded { lease, .. }
        | Refusal::LeaseLong { lease, .. }
        | Refusal::LeaseResold { lease }
        | Refusal::LeaseFirm { lease, .. }
        | Refusal::BuyerOnly { lease, .. }
        | Refusal::ProviderOnly { lease, .. } => look("its state", &format!("lease show {lease}")),
        Refusal::PriceOffTick { .. }
        | Refusal::QuantityOffLot { .. }
        | Refusal::BudgetSmall { .. }
        | Refusal::DurationBad { .. }
        | Refusal::Unfilled { .. } => look("what is on offer", "book"),
        Refusal::OperatorOnly { .. } => "sign as an operator: --operator-key FILE".to_owned(),
        _ => look("the market's rules", "market show"),
    }
}

/// Returns the failure for an answer that does not match the command.
pub fn out_of_turn(done: &Acceptance) -> Failure {
    let cause = format!("the market answered {done:?}");
    Failure::new(Kind::Unexpected, cause, "is it another version of souk?")
}
