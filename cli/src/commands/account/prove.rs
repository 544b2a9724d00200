//! `souk account prove` and `souk account verify`: prove an account's balances by the state that
//! validators certify, and check such a proof offline.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_folder::clock::unix_ms;
use souk_folder::market_file::MarketFile;
use souk_node::client::account_proof::{
    AccountFault, AccountProof, CertifiedAccount, ProveAccountError, prove_account as fetch_proof,
};
use souk_node::client::reach;
use souk_node::client::settlement::list_founders;
use souk_node::market::AccountKey;

use super::own_account;
use crate::args::Output;
use crate::commands::uncertified::fail_uncertified;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_reach};
use crate::{files, show};

/// How often a state that is not certified yet is looked for, and the pause between.
const TRIES_MAX: u32 = 8;
const TRY_PAUSE: Duration = Duration::from_millis(500);

/// The age from which a proof says that balances can be others by now.
const AGE_MS_MAX: u64 = 600_000;

/// Proves what the last certified state says about an account.
pub async fn prove_account(
    folder: &Path,
    output: Output,
    account: Option<AccountKey>,
    proof_output: Option<&Path>,
) -> Outcome {
    let account = account.map_or_else(|| own_account(folder), Ok)?;
    let market = read_market(folder)?;
    let (broker, _) = reach::connect_read_only(&market)
        .await
        .map_err(from_reach)?;
    let mut tries = 1;
    let proven = loop {
        let proven = fetch_proof(&broker, &market.genesis, account).await;
        // Validators certify several states a second, and keep the last ones for proofs.
        let is_passing = matches!(
            proven,
            Err(ProveAccountError::Uncertified(_) | ProveAccountError::Gone { .. })
        );
        if !is_passing || tries == TRIES_MAX {
            break proven.map_err(from_error)?;
        }
        tries += 1;
        tokio::time::sleep(TRY_PAUSE).await;
    };
    if let Some(path) = proof_output {
        std::fs::write(path, proven.proof.encode()).map_err(|error| {
            let cause = format!("cannot write {}: {error}", path.display());
            Failure::new(Kind::State, cause, "give a file that you can write with -o")
        })?;
    }
    print_certified(output, &proven.account, proven.history.check.members.len());
    show::certification::warn_of_fault(&proven.history);
    let founders = list_founders(&market.genesis);
    let market = market.genesis.market_id();
    if proof_output.is_some() && proven.proof.verify(market, &founders).is_err() {
        show::print_notice(
            "the market's validators were replaced since its founding: `souk account verify` will \
             refuse the saved proof, because it counts the founders alone",
        );
    }
    Ok(())
}

/// Checks a saved proof without a network.
pub fn verify_proof(
    folder: &Path,
    output: Output,
    file: &Path,
    account: Option<AccountKey>,
) -> Outcome {
    let genesis = read_market(folder)?.genesis;
    let named = |fault: AccountFault| {
        let cause = format!("{}: {fault}", file.display());
        let hint = match fault {
            AccountFault::Market(_) => "name a folder of the proof's market with --dir",
            _ => "it proves nothing: ask for another, made with `souk account prove -o`",
        };
        Failure::new(Kind::Verification, cause, hint)
    };
    let proof = AccountProof::decode(&files::read(file)?).map_err(named)?;
    if account.is_some_and(|account| account != proof.account()) {
        return Err(named(AccountFault::Account(proof.account())));
    }
    let founders = list_founders(&genesis);
    let found = proof
        .verify(genesis.market_id(), &founders)
        .map_err(named)?;
    print_certified(output, &found, founders.len());
    Ok(())
}

fn read_market(folder: &Path) -> Result<MarketFile, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    Ok(market.with_known(folder))
}

fn print_certified(output: Output, found: &CertifiedAccount, members: usize) {
    let age_ms = unix_ms().saturating_sub(found.time.0);
    if output == Output::Json {
        let facts = json!({ "valid": true, "certified": found, "validators": members });
        return show::print_json(&show::with(facts, [("age_ms", json!(age_ms))]));
    }
    show::print_line(&format!("account     {}", found.account));
    match found.balances {
        Some(balances) => {
            let rows = [
                ("available", balances.available),
                ("in escrow", balances.escrow),
                ("stake", balances.stake),
            ];
            for (what, credits) in rows {
                let credits = show::format_credits(credits.0);
                show::print_line(&format!("{what:<11} {credits}"));
            }
        }
        None => show::print_line("absent      the market had no such account"),
    }
    show::print_line(&format!(
        "at entry {} of the log, {} UTC, {} old · certified by {} of {members} at {}",
        found.index,
        show::time_of_day(found.time.0),
        show::format_seconds(age_ms as f64 / 1e3),
        found.signers.len(),
        show::time_of_day(found.certified_s.saturating_mul(1_000)),
    ));
    if age_ms >= AGE_MS_MAX {
        show::print_notice("the proof is old: it shows what was so then, and not what is so now");
    }
}

fn from_error(error: ProveAccountError) -> Failure {
    let (kind, hint) = match &error {
        ProveAccountError::Silent => (
            Kind::Network,
            "see with `souk market verify` who answers, and try again",
        ),
        ProveAccountError::Uncertified(history) | ProveAccountError::Gone { history, .. } => {
            return fail_uncertified(&error, history);
        }
        ProveAccountError::Stateless => (
            Kind::State,
            "ask the operators to install the present release on all validators",
        ),
        ProveAccountError::Unproven { .. } => (
            Kind::Verification,
            "believe no balance from that validator, and run `souk market verify`",
        ),
    };
    Failure::new(kind, error, hint)
}
