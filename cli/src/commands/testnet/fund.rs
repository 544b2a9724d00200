//! `souk testnet fund`: creates credits for an account of a testnet, by its name or its key.

use std::path::Path;

use souk_folder::config::{KEY_FILE, OPERATOR_FOLDER};
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_node::market::AccountKey;
use souk_testnet::layout;

use crate::args::{FundArgs, Operator, OperatorKey, Output};
use crate::commands::operator;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;

/// Creates the credits as the testnet's operator.
pub async fn run(folder: &Path, output: Output, args: &FundArgs) -> Outcome {
    MarketFile::read_nearest(folder).map_err(from_config)?;
    let operator_key = folder.join(OPERATOR_FOLDER).join(KEY_FILE);
    if !operator_key.exists() {
        let cause = format!("{} has no operator's key", folder.display());
        let hint = "give the folder of `souk testnet up` with --dir; in another market its \
                    operator gives credits by `souk operator credit`";
        return Err(Failure::new(Kind::State, cause, hint));
    }
    let credit = Operator::Credit {
        account: find_account(folder, &args.account)?,
        amount: args.amount,
        key: OperatorKey {
            operator_key: Some(operator_key),
        },
    };
    operator::run(folder, output, credit).await
}

/// Returns the account with this name or key.
fn find_account(folder: &Path, called: &str) -> Result<AccountKey, Failure> {
    if let Ok(account) = called.parse() {
        return Ok(account);
    }
    let names = account_names(folder);
    if !names.iter().any(|name| name == called) {
        let cause = format!("no account of {} is called {called}", folder.display());
        let hint = format!(
            "its accounts are {}; others are named by their 64 hexadecimal digits",
            names.join(", ")
        );
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let key = NodeKey::load(&folder.join(called).join(KEY_FILE)).map_err(|error| {
        let hint = "give the account by its 64 hexadecimal digits";
        Failure::new(Kind::State, error, hint)
    })?;
    Ok(AccountKey(key.public_key()))
}

/// Returns the names of the accounts with a folder in the testnet.
fn account_names(folder: &Path) -> Vec<String> {
    let others = ["buyer", OPERATOR_FOLDER].map(str::to_owned);
    others
        .into_iter()
        .chain(layout::node_names(folder))
        .collect()
}
