//! `souk account prove` and `souk account verify`: prove an account's balances by the state that
//! validators certify, and check such a proof offline.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_folder::clock::unix_ms;
use souk_folder::market_file::MarketFile;
use souk_node::client::account_proof::{
    AccountFault, AccountProof, CertifiedAccount, ProveAccountError, prove_account as fetch_proof,
};
use souk_node::client::history::CountedRoster;
use souk_node::client::reach;
use souk_node::market::AccountKey;

use super::own_account;
use crate::args::Output;
use crate::commands::roster::{self, KnownRoster, ProofRefusal};
use crate::commands::uncertified::fail_uncertified;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_reach};
use crate::{files, show};

/// How often a state that is not certified yet is looked for, and the pause between.
const TRIES_MAX: u32 = 8;
const TRY_PAUSE: Duration = Duration::from_millis(500);

/// The age from which a proof says that balances can be others by now.
const AGE_MS_MAX: u64 = 600_000;

/// What to do about a proof that shows nothing.
const HINT: &str = "it proves nothing: ask for another, made with `souk account prove -o`";

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
    let members = proven.history.check.members.len();
    print_certified(output, &proven.account, members, None);
    show::certification::warn_of_fault(&proven.history);
    roster::keep_orders(folder, &proven.history.orders)?;
    let alone = KnownRoster::of_genesis(&market.genesis);
    if proof_output.is_some()
        && let Err(fault) = check_proof(&proven.proof, &alone)
    {
        show::print_notice(&format!(
            "without the market nobody can check the saved proof: {fault}"
        ));
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
    let known = KnownRoster::read(folder)?;
    let fail = |fault: &dyn Display, hint| {
        let cause = format!("{}: {fault}", file.display());
        Failure::new(Kind::Verification, cause, hint)
    };
    let named = |fault: AccountFault| match fault {
        AccountFault::Market(_) => fail(&fault, "name a folder of the proof's market with --dir"),
        _ => fail(&fault, HINT),
    };
    let proof = AccountProof::decode(&files::read(file)?).map_err(named)?;
    if account.is_some_and(|account| account != proof.account()) {
        return Err(named(AccountFault::Account(proof.account())));
    }
    let (found, counted) = check_proof(&proof, &known).map_err(|refusal| match refusal {
        ProofRefusal::Proof(fault) => named(fault),
        ProofRefusal::Orders(fault) => fail(&fault, HINT),
    })?;
    print_certified(output, &found, counted.roster.members, Some(&counted));
    Ok(())
}

/// Checks a proof by what a folder knows about the validators. Returns the account, and the roster
/// that certifies it.
fn check_proof(
    proof: &AccountProof,
    known: &KnownRoster,
) -> Result<(CertifiedAccount, CountedRoster), ProofRefusal<AccountFault>> {
    known.check_proof(proof.orders(), |market, roster| {
        proof.verify(market, roster)
    })
}

fn read_market(folder: &Path) -> Result<MarketFile, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    Ok(market.with_known(folder))
}

/// Prints an account, and by which roster its proof was checked without the market.
fn print_certified(
    output: Output,
    found: &CertifiedAccount,
    members: usize,
    counted: Option<&CountedRoster>,
) {
    let age_ms = unix_ms().saturating_sub(found.time.0);
    if output == Output::Json {
        let facts = json!({ "valid": true, "certified": found, "validators": members });
        let roster = counted.map(roster::to_json);
        let more = [("age_ms", json!(age_ms)), ("roster", json!(roster))];
        return show::print_json(&show::with(facts, more));
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
    counted.into_iter().for_each(roster::print_counted);
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
