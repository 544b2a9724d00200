//! Checks the folder's market for `souk doctor`: whether and how fast it answers, its clock, and
//! the folder's account.

use std::path::Path;
use std::time::Instant;

use souk_folder::clock::unix_ms;
use souk_folder::config::KEY_FILE;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::protocols::market::{Answer, Request};
use souk_node::client::broker::Broker;

use super::Finding;
use crate::folder;
use crate::{show, suggested_command};

/// Clock error in milliseconds: the one that brings a warning, and the one that will make requests
/// fail.
const CLOCK_MS: u64 = 2_000;
const CLOCK_MAX_MS: u64 = 60_000;

/// Checks the market of a folder, if it has one.
pub async fn check_market(dir: &Path) -> Vec<Finding> {
    let Ok(market) = MarketFile::read_nearest(dir) else {
        return Vec::new();
    };
    let name = market.genesis.chain.as_str().to_owned();
    let begun = Instant::now();
    let broker = match folder::connect_broker(dir).await {
        Ok(broker) => broker,
        Err(failure) => {
            let found = format!("\"{name}\" does not answer: {}", failure.cause);
            let fix = match dir.join("testnet.log").exists() {
                true => suggested_command::market_command("testnet up"),
                false => "check that the network is up and the market's validators run".into(),
            };
            return vec![Finding::problem("market", found, fix)];
        }
    };
    let took = begun.elapsed().as_secs_f64();
    let known = show::to_u64(broker.validators().len());
    let known = show::format_count(known, "validator");
    let found = format!(
        "\"{name}\" answers in {}; {known} known",
        show::format_seconds(took)
    );
    let mut findings = vec![Finding::good("market", found), check_clock(&broker)];
    findings.extend(check_account(dir, &broker).await);
    findings
}

fn check_clock(broker: &Broker) -> Finding {
    let off = broker.log_clock().log_time().0.abs_diff(unix_ms());
    let found = format!(
        "{} from the validators'",
        show::format_seconds(off as f64 / 1e3)
    );
    let fix = "set this machine's clock by NTP";
    match off {
        0..CLOCK_MS => Finding::good("clock", found),
        CLOCK_MS..CLOCK_MAX_MS => Finding::warning("clock", found, fix),
        _ => Finding::problem("clock", found, fix),
    }
}

async fn check_account(dir: &Path, broker: &Broker) -> Option<Finding> {
    if NodeKey::is_locked(&folder::account_folder(dir).join(KEY_FILE)) {
        let found = "its key is locked, and the doctor does not ask for the passphrase";
        return Some(Finding::good("account", found));
    }
    let Some(own) = folder::own_account(dir) else {
        let found = "the folder has none; reading the market needs none";
        let fix = suggested_command::market_command("account new");
        return Some(Finding::warning("account", found, fix));
    };
    let Ok(Answer::Account(account)) = broker.ask(&Request::Account(own)).await else {
        return None;
    };
    let short = own.to_string()[..8].to_owned();
    Some(match account {
        None => {
            let found = format!("{short} is not open in this market");
            Finding::warning(
                "account",
                found,
                suggested_command::market_command("account new"),
            )
        }
        Some(account) if account.available.0 == 0 => {
            let found = format!("{short} has nothing to spend");
            let fix = suggested_command::market_command("account deposit AMOUNT --reference TEXT");
            Finding::warning("account", found, fix)
        }
        Some(account) => {
            let has = show::format_credits(account.available.0);
            Finding::good("account", format!("{short} has {has} credits to spend"))
        }
    })
}
