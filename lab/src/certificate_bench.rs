//! Measures how soon validators certify what they have committed, and what certificates cost.
//!
//! Pairs of a buyer and a provider settle leases in a market of validator processes, and a client
//! asks the validators for their certified head all the time. Each settled lease has a leaf in the
//! history: the time from the market's answer until a certified head covers that leaf counts. Then
//! one validator's log is replayed as `souk audit` does. The rate of signed commands is that of
//! `souk bench consensus`, with and without cosigning in turn.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use souk_folder::key::{self, NotAKey};
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_host::clock;
use souk_market::Genesis;
use souk_network::protocols::market::{Answer, Request};
use souk_node::client::broker::Broker;
use souk_node::client::history::{CosigningRoster, TreeNote};
use souk_node::validator::{ValidatorAuditError, node};
use souk_roles::market::history_check::list_known_cosigners;
use souk_roles::market::known_members::KnownMembers;
use souk_testnet::layout;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::consensus_bench::{self, Bench, BenchError};
use crate::lease_bench::{LeaseConfig, SettledLease, trade_leases};
use crate::submissions::TimePercentiles;
use crate::traders::{TradersError, connect_operator, spawn_validators};

/// The pause between two questions for the certified head, by which a time can be too long.
const ASK_PERIOD: Duration = Duration::from_millis(4);

/// The leases whose leaves are fetched: enough for the 99th percentile.
const SAMPLED_LEASES: usize = 1_000;

/// The commands of a lease: bid, start, ready, settle.
const COMMANDS_PER_LEASE: usize = 4;

/// The last settlement must be certified within this time.
const CERTIFICATE_PATIENCE: Duration = Duration::from_secs(30);

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The market could not be used.
    #[error(transparent)]
    Traders(#[from] TradersError),
    /// The genesis names a validator by bytes that are no key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// No validator showed where in the history a lease was settled.
    #[error("no validator shows the settlement of lease {0}")]
    Unsettled(u64),
    /// The validators did not certify the last settlement.
    #[error(
        "no head that covers the last settlement was certified within {CERTIFICATE_PATIENCE:?}"
    )]
    Uncertified,
    /// A validator's log does not replay to what it recorded.
    #[error(transparent)]
    Audit(#[from] ValidatorAuditError),
    /// The replicas of the bare log failed.
    #[error(transparent)]
    Consensus(#[from] BenchError),
}

/// How soon commands are certified in a market.
#[derive(Clone, Debug, Serialize)]
pub struct CertificateReport {
    /// Number of validators.
    pub validators: u32,
    /// Commands that the market answered, each signed.
    pub commands: usize,
    /// Commands per second.
    pub commands_per_second: f64,
    /// Settlements whose certificates were timed.
    pub certified: usize,
    /// Time from the answer that a receipt is settled to a certified head that covers it.
    pub certificate: TimePercentiles,
    /// Commands in the log of the first validator.
    pub audited: u64,
    /// Seconds of processor time that it took to check their signatures and to replay them.
    pub audit_core_seconds: f64,
    /// Commands that one core replays per second.
    pub audited_per_second: f64,
}

/// The rates of signed commands with and without cosigning.
#[derive(Clone, Debug, Serialize)]
pub struct CosigningCost {
    /// Commands per second of each round without cosigning.
    pub without: Vec<f64>,
    /// The same with cosigning.
    pub with: Vec<f64>,
    /// The median of the ratios of each round: with cosigning to without.
    pub ratio: f64,
}

/// A certified head, and when a client first saw it.
#[derive(Clone, Debug)]
struct SeenHead {
    at: Instant,
    note: TreeNote,
}

/// Starts a market in `folder`, measures its certificates, stops it, and replays a log.
///
/// # Errors
/// If the market does not start, refuses a command, or certifies nothing.
pub async fn measure_certificates(
    binary: &Path,
    folder: &Path,
    config: LeaseConfig,
) -> Result<CertificateReport, CertificateError> {
    let mut cluster = spawn_validators(binary, folder, config.validators)?;
    let measured = async {
        cluster.wait_ready().await.map_err(TradersError::from)?;
        trade_and_watch(folder, config).await
    };
    let measured = measured.await;
    cluster.stop_all().await;
    let mut report = measured?;
    let home = folder.join(layout::validator_name(1));
    let market = MarketFile::read(&folder.join(MARKET_FILE)).map_err(TradersError::from)?;
    let replayed = tokio::task::spawn_blocking(move || {
        let begin = clock::of_process();
        let audit = node::audit_log(&home, &market)?;
        let spent = clock::of_process().saturating_sub(begin);
        Ok::<_, ValidatorAuditError>((audit.replay.commands, spent))
    });
    let (commands, spent) = replayed.await.expect("an audit does not panic")?;
    report.audited = commands;
    report.audit_core_seconds = spent.as_secs_f64();
    report.audited_per_second = commands as f64 / spent.as_secs_f64();
    Ok(report)
}

/// Settles leases while a client watches the certified heads.
async fn trade_and_watch(
    folder: &Path,
    config: LeaseConfig,
) -> Result<CertificateReport, CertificateError> {
    let (market, operator) = connect_operator(folder).await?;
    let (told, mut seen) = watch::channel(Vec::new());
    let watching = tokio::spawn(watch_heads(operator.broker().clone(), market.clone(), told));
    let traded = trade_leases(&market, &operator, config).await;
    let (settled, seconds) = traded?;
    let step = settled.len().div_ceil(SAMPLED_LEASES).max(1);
    let mut leaves = Vec::new();
    for lease in settled.iter().step_by(step) {
        let leaf = fetch_leaf(operator.broker(), &market, lease).await?;
        leaves.push((leaf, lease.settled_at));
    }
    let last = leaves
        .iter()
        .map(|(leaf, _)| *leaf)
        .max()
        .unwrap_or_default();
    let covers = |heads: &Vec<SeenHead>| heads.last().is_some_and(|it| last < it.note.head.size);
    let covered = tokio::time::timeout(CERTIFICATE_PATIENCE, seen.wait_for(covers)).await;
    let heads = match covered {
        Ok(Ok(heads)) => heads.clone(),
        _ => return Err(CertificateError::Uncertified),
    };
    watching.abort();
    let commands = settled.len() * COMMANDS_PER_LEASE;
    Ok(CertificateReport {
        validators: config.validators,
        commands,
        commands_per_second: commands as f64 / seconds,
        certified: leaves.len(),
        certificate: TimePercentiles::from_times(time_certificates(&leaves, &heads)),
        audited: 0,
        audit_core_seconds: 0.0,
        audited_per_second: 0.0,
    })
}

/// Returns the validators that the genesis names.
fn list_founders(genesis: &Genesis) -> CosigningRoster {
    list_known_cosigners(genesis, &KnownMembers::new(genesis)).into()
}

/// Asks one validator after another for its certified head, and keeps each larger one that enough
/// founders signed.
async fn watch_heads(
    broker: Broker,
    market: MarketFile,
    told: watch::Sender<Vec<SeenHead>>,
) -> Result<(), NotAKey> {
    let founders = list_founders(&market.genesis);
    let accounts = founders.cosigners.values();
    let peers = accounts.map(|account| key::peer_of(&account.0));
    let peers = peers.collect::<Result<Vec<_>, NotAKey>>()?;
    let mut size = 0;
    for peer in peers.iter().cycle() {
        if let Ok(Answer::TreeHeads(heads)) = broker.ask_one(*peer, &Request::TreeHeads).await
            && let Some(text) = heads.certified
            && let Ok(note) = TreeNote::decode(text.as_bytes())
            && note.head.size > size
            && note.certified_s(&founders).is_some()
        {
            size = note.head.size;
            let at = Instant::now();
            told.send_modify(|seen| seen.push(SeenHead { at, note }));
        }
        tokio::time::sleep(ASK_PERIOD).await;
    }
    Ok(())
}

/// Returns the number of the leaf that settled a lease, as any validator shows it.
async fn fetch_leaf(
    broker: &Broker,
    market: &MarketFile,
    settled: &SettledLease,
) -> Result<u64, CertificateError> {
    for account in list_founders(&market.genesis).cosigners.values() {
        let peer = key::peer_of(&account.0)?;
        let request = Request::Settlement(settled.lease);
        if let Ok(Answer::Settlement(Some(record))) = broker.ask_one(peer, &request).await {
            return Ok(record.leaf);
        }
    }
    Err(CertificateError::Unsettled(settled.lease.0))
}

/// Returns the time from the answer about each leaf to the first head that covers it; zero if the
/// head was there before the answer.
fn time_certificates(leaves: &[(u64, Instant)], heads: &[SeenHead]) -> Vec<Duration> {
    let time = |(leaf, answered): &(u64, Instant)| {
        let first = heads.partition_point(|it| it.note.head.size <= *leaf);
        let head = heads.get(first)?;
        Some(head.at.saturating_duration_since(*answered))
    };
    leaves.iter().filter_map(time).collect()
}

/// Measures the rate of signed commands with and without cosigning, `rounds` times in turn. `bench`
/// says all but whether the replicas cosign; each run has a folder of its own in its folder.
///
/// # Errors
/// If the replicas do not start, or fail.
pub async fn measure_cosigning(
    bench: &Bench,
    rounds: u32,
) -> Result<CosigningCost, CertificateError> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // Each is the first one in every second round.
        let is_first = round % 2 == 1;
        for is_cosigned in [is_first, !is_first] {
            let run = Bench {
                is_cosigned,
                folder: bench.folder.join(format!("{round}-{is_cosigned}")),
                ..bench.clone()
            };
            let rate = consensus_bench::run(&run).await?.operations_per_second;
            match is_cosigned {
                true => with.push(rate),
                false => without.push(rate),
            }
        }
    }
    let pairs = with.iter().zip(&without);
    let mut ratios: Vec<f64> = pairs.map(|(with, without)| with / without).collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    Ok(CosigningCost {
        without,
        with,
        ratio,
    })
}

#[cfg(test)]
mod tests {
    use souk_consensus::{Digest, LogIndex, LogTime, TreeHead};
    use souk_market::MarketId;

    use super::*;

    #[test]
    fn a_leaf_is_certified_by_the_first_head_that_is_larger() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let seen = |size, ms| {
            let head = TreeHead {
                index: LogIndex(size),
                time: LogTime(0),
                size,
                root: Digest([1; 32]),
                state: None,
            };
            let note = TreeNote::new(MarketId([1; 32]), head);
            SeenHead { at: at(ms), note }
        };
        let heads = [seen(5, 100), seen(9, 300)];
        let leaves = [(4, at(20)), (5, at(150)), (8, at(400)), (9, at(10))];
        let times = time_certificates(&leaves, &heads);
        let ms: Vec<u128> = times.iter().map(Duration::as_millis).collect();
        assert_eq!(ms, [80, 150, 0], "leaf 9 is not certified yet");
    }
}
