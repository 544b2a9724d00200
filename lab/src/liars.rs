//! Makes one of four validators lie in each way that the protocol can express, and checks what
//! follows: what two clients report, and which validator the files that they saved convict without
//! a network.
//!
//! The validators are real processes, and the clients are `souk market verify`. The liar has a
//! validator's key, so its signatures are as good as any; the other three continue without it.

mod lying_validator;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use souk_folder::config::{ConfigError, KEY_FILE};
use souk_folder::key::{KeyError, NodeKey, NotAKey};
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_market::{AccountKey, Name};
use souk_network::{Network, NetworkConfig, OpenError};
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::client::history::{SignedHead, gather_heads};
use souk_node::client::trader::Trader;
use souk_testnet::cluster::{Cluster, ControlError};
use souk_testnet::layout::{self, LayoutError};
use souk_testnet::process::StartError;
use tokio::process::Command;
use tokio::time::Instant;

use lying_validator::{HonestHeads, LyingValidator};

/// The validators, of which the last one lies.
const VALIDATORS: u32 = 4;
const LIAR: u64 = 4;

/// A certified head must come within this time: on a busy machine an election can come before it.
const HEAD_PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks for it.
const HEAD_PERIOD: Duration = Duration::from_millis(200);

/// A way to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lie {
    /// It signs two roots of the history for one size, and shows both.
    TwoRoots,
    /// It signs two roots of the state after the same steps, and shows both.
    TwoStates,
    /// It signs two roots of one size, and shows each client another.
    SplitView,
    /// It signs only a root of another history than the certified one.
    WrongRoot,
    /// It signs only a root of another state than the certified one.
    WrongState,
    /// It signs a shorter history, with which the certified one does not begin.
    OtherHistory,
    /// It shows a certificate with the others' signatures of another head.
    ForgedCertificate,
    /// It shows an old certificate and signs nothing newer.
    OldCertificate,
    /// It states a thousand times an account's balance, and proves it with another account's.
    FalseBalance,
}

/// The consequence of a lie for the liar and the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Two signed heads name the liar to anybody who has the genesis.
    Convicted,
    /// The files show that it contradicts what is certified, which a leader's lie can also cause.
    Suspected,
    /// Clients see the lie and believe nothing of it. No file shows it to others.
    Seen,
    /// Clients take a certified answer of the others.
    Outvoted,
}

impl Lie {
    /// All ways to lie.
    pub const ALL: [Lie; 9] = [
        Lie::TwoRoots,
        Lie::TwoStates,
        Lie::SplitView,
        Lie::WrongRoot,
        Lie::WrongState,
        Lie::OtherHistory,
        Lie::ForgedCertificate,
        Lie::OldCertificate,
        Lie::FalseBalance,
    ];

    /// Returns what the lie must lead to.
    #[must_use]
    pub fn expected_verdict(self) -> Verdict {
        match self {
            Lie::TwoRoots | Lie::TwoStates | Lie::SplitView => Verdict::Convicted,
            Lie::WrongRoot | Lie::WrongState | Lie::OtherHistory => Verdict::Suspected,
            Lie::ForgedCertificate => Verdict::Seen,
            Lie::OldCertificate | Lie::FalseBalance => Verdict::Outvoted,
        }
    }

    /// Returns its name, which is also that of its folder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lie::TwoRoots => "two-roots",
            Lie::TwoStates => "two-states",
            Lie::SplitView => "split-view",
            Lie::WrongRoot => "wrong-root",
            Lie::WrongState => "wrong-state",
            Lie::OtherHistory => "other-history",
            Lie::ForgedCertificate => "forged-certificate",
            Lie::OldCertificate => "old-certificate",
            Lie::FalseBalance => "false-balance",
        }
    }
}

/// The findings of one `souk market verify`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The command's exit code.
    pub exit_code: i32,
    /// The validators that it convicts.
    pub liars: Vec<u64>,
    /// The validators that contradict what is certified.
    pub suspects: Vec<u64>,
    /// The validators that showed forged signatures.
    pub forgers: Vec<u64>,
}

/// The results of one lie.
#[derive(Clone, Debug, Serialize)]
pub struct LieReport {
    /// The lie.
    pub lie: Lie,
    /// What it led to.
    pub verdict: Verdict,
    /// The findings of the first client, which asked all validators.
    pub alice: Finding,
    /// Those of the second one.
    pub bob: Finding,
    /// The findings about the files of both, without a network.
    pub offline: Finding,
    /// What the check of all files saved: the two heads that convict the liar, and a folder with
    /// tiles for two heads of which the larger does not continue the smaller.
    pub evidence: Vec<PathBuf>,
}

/// The results of all lies.
#[derive(Clone, Debug, Serialize)]
pub struct LiarsReport {
    /// The lies, one after the other.
    pub lies: Vec<LieReport>,
    /// Each broken promise in a sentence; empty if all held.
    pub violations: Vec<String>,
}

/// Why the test did not run.
#[derive(Debug, thiserror::Error)]
pub enum LiarsError {
    /// The folder could not be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file of the market could not be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key could not be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A validator's account is no key.
    #[error(transparent)]
    NotAKey(#[from] NotAKey),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A node could not be stopped.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The liar's or the client's network did not start.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// The liar or the client cannot reach a validator.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The client has no validators.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The validators certified no head in time.
    #[error("the validators certified no head {wanted} in time")]
    NotCertified {
        /// How the head should have been signed: `by all` or `without the liar`.
        wanted: &'static str,
    },
    /// A file could not be written, or `souk` did not run.
    #[error("{path}: {cause}")]
    System {
        /// The file or program.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
}

/// Starts a market in `folder`, has its last validator tell each lie, and stops the market. The
/// files of each lie are in a folder of its name in `out`, which this makes.
///
/// # Errors
/// If the test could not run. A broken promise is in the report.
pub async fn run(binary: &Path, folder: &Path, out: &Path) -> Result<LiarsReport, LiarsError> {
    let config = layout::Config {
        validators: VALIDATORS,
        providers: Vec::new(),
        ..layout::Config::default()
    };
    let _ports = layout::create_testnet(folder, &config)?;
    let mut cluster = Cluster::spawn(binary, folder)?;
    let played = Stage {
        binary,
        folder,
        out,
    };
    let report = played.play_lies(&mut cluster).await;
    cluster.stop_all().await;
    report
}

/// The program and the folders of the test.
struct Stage<'a> {
    binary: &'a Path,
    folder: &'a Path,
    out: &'a Path,
}

impl Stage<'_> {
    async fn play_lies(&self, cluster: &mut Cluster) -> Result<LiarsReport, LiarsError> {
        cluster.wait_ready().await?;
        let market = MarketFile::read(&self.folder.join(MARKET_FILE))?;
        let contacts = market.contacts()?;
        let network = Network::start(&NodeKey::generate(), NetworkConfig::default()).await?;
        let broker = Broker::new(network, &contacts).await?;
        let signs = |signed: &SignedHead| signed.signers.contains(&LIAR);
        let listener = Trader::new(
            NodeKey::generate(),
            market.genesis.market_id(),
            broker.clone(),
        );
        let is_early = |it: &SignedHead| signs(it) && it.head().size > 1;
        let early = await_certified(&listener, &market, "by all", is_early).await?;
        let name = layout::validator_name(VALIDATORS);
        cluster.kill_node(&name).await?;
        let is_late = |it: &SignedHead| !signs(it);
        let late = await_certified(&listener, &market, "without the liar", is_late).await?;
        let heads = HonestHeads {
            early: early.note,
            late: late.note,
        };
        let buyer =
            AccountKey(NodeKey::load(&self.folder.join("buyer").join(KEY_FILE))?.public_key());
        let operator = market.genesis.operators[0];
        let liar =
            LyingValidator::start(&self.folder.join(name), &contacts[0], heads, operator).await?;
        let (mut lies, mut violations) = (Vec::new(), Vec::new());
        for lie in Lie::ALL {
            let report = self.play_lie(&liar, lie).await?;
            if report.verdict != lie.expected_verdict() {
                let name = lie.name();
                violations.push(format!("{name} led to {:?}: {report:?}", report.verdict));
            }
            lies.push(report);
        }
        violations.extend(self.check_balance(&liar, buyer).await?);
        Ok(LiarsReport { lies, violations })
    }

    async fn play_lie(
        &self,
        liar: &Arc<LyingValidator>,
        lie: Lie,
    ) -> Result<LieReport, LiarsError> {
        let folder = self.out.join(lie.name());
        self.copy_market(&folder)?;
        let mut found = Vec::new();
        for (name, is_first) in [("alice", true), ("bob", false)] {
            let home = folder.join(name);
            self.copy_market(&home)?;
            liar.tell(lie, is_first);
            let heads = home.join("heads");
            let heads = heads.to_string_lossy();
            let arguments = ["market", "verify", "-o", &heads];
            found.push(read_finding(&self.run_souk(&home, &arguments).await?));
        }
        let mut files = Vec::new();
        for name in ["alice", "bob"] {
            files.push(folder.join(name).join("heads"));
            let evidence = list_evidence(&folder.join(name))?.into_iter();
            files.extend(evidence.filter(|path| path.is_dir()));
        }
        let files = files.iter().map(|path| path.to_string_lossy());
        let files: Vec<_> = files.flat_map(|path| ["--from".into(), path]).collect();
        let files = files.iter().map(AsRef::as_ref);
        let arguments: Vec<&str> = ["market", "verify"].into_iter().chain(files).collect();
        let offline = read_finding(&self.run_souk(&folder, &arguments).await?);
        let [alice, bob] = <[Finding; 2]>::try_from(found).expect("two clients asked");
        Ok(LieReport {
            lie,
            verdict: judge(&[&alice, &bob, &offline]),
            alice,
            bob,
            offline,
            evidence: list_evidence(&folder)?,
        })
    }

    /// Checks that the proven balance is the true one, whatever the liar states.
    async fn check_balance(
        &self,
        liar: &Arc<LyingValidator>,
        account: AccountKey,
    ) -> Result<Option<String>, LiarsError> {
        liar.tell(Lie::FalseBalance, true);
        let home = self.out.join(Lie::FalseBalance.name()).join("alice");
        let account = account.to_string();
        let arguments = ["account", "prove", &account];
        let ran = self.run_souk(&home, &arguments).await?;
        let proven = ran
            .values
            .iter()
            .find_map(|value| value["certified"]["balances"]["available"].as_u64());
        let is_true = proven == Some(layout::BUYER_CREDITS);
        Ok((!is_true).then(|| format!("the proven balance is {proven:?}: {:?}", ran.values)))
    }

    /// Gives a folder the genesis, and nothing else of the market.
    fn copy_market(&self, folder: &Path) -> Result<(), LiarsError> {
        let path = folder.join(MARKET_FILE);
        let copied = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::copy(self.folder.join(MARKET_FILE), &path));
        copied
            .map(drop)
            .map_err(|cause| LiarsError::System { path, cause })
    }

    async fn run_souk(&self, folder: &Path, arguments: &[&str]) -> Result<Ran, LiarsError> {
        let ran = Command::new(self.binary)
            .arg("--dir")
            .arg(folder)
            .arg("--json")
            .args(arguments)
            .output()
            .await;
        let path = self.binary.to_owned();
        let ran = ran.map_err(|cause| LiarsError::System { path, cause })?;
        let values = serde_json::Deserializer::from_slice(&ran.stdout).into_iter();
        Ok(Ran {
            exit_code: ran.status.code().unwrap_or(-1),
            values: values.map_while(Result::ok).collect(),
        })
    }
}

/// The exit code of a command, and the JSON that it printed.
struct Ran {
    exit_code: i32,
    values: Vec<Value>,
}

/// Gives the validators entries to sign until they certify a head as wanted.
async fn await_certified(
    listener: &Trader,
    market: &MarketFile,
    wanted: &'static str,
    is_wanted: impl Fn(&SignedHead) -> bool,
) -> Result<SignedHead, LiarsError> {
    let deadline = Instant::now() + HEAD_PATIENCE;
    let name = Name::try_from("listener").expect("a short plain name");
    while Instant::now() < deadline {
        // The account is known after the first time; each time is an entry. An election can cause
        // an error, and another head is needed then all the same.
        let _entry = listener.register_account(name.clone()).await;
        let history = gather_heads(listener.broker(), &market.genesis, Vec::new()).await;
        if let Some(signed) = history.check.find_certified().filter(|it| is_wanted(it)) {
            return Ok(signed.clone());
        }
        tokio::time::sleep(HEAD_PERIOD).await;
    }
    Err(LiarsError::NotCertified { wanted })
}

/// Reads the report of `souk market verify`, and the error that can follow it.
fn read_finding(ran: &Ran) -> Finding {
    let ids = |value: &Value| -> Vec<u64> {
        let ids = value.as_array().into_iter().flatten();
        ids.filter_map(Value::as_u64).collect()
    };
    let mut finding = Finding {
        exit_code: ran.exit_code,
        ..Finding::default()
    };
    for value in &ran.values {
        let answers = value["answers"].as_array().into_iter().flatten();
        let forgers = answers.filter(|answer| !ids(&answer["forged"]).is_empty());
        finding
            .forgers
            .extend(forgers.filter_map(|it| it["validator"].as_u64()));
        finding.liars.extend(ids(&value["error"]["liars"]));
        finding.suspects.extend(ids(&value["error"]["suspects"]));
    }
    finding
}

/// Returns what a lie led to; somebody honest who is named breaks every promise.
fn judge(findings: &[&Finding; 3]) -> Verdict {
    let names = |pick: fn(&Finding) -> &Vec<u64>| {
        let named = findings.iter().flat_map(|finding| pick(finding));
        named.copied().collect::<Vec<u64>>()
    };
    let offline = findings[2];
    let is_liar_alone = |named: &[u64]| !named.is_empty() && named.iter().all(|it| *it == LIAR);
    if is_liar_alone(&offline.liars) && is_liar_alone(&names(|it| &it.liars)) {
        Verdict::Convicted
    } else if is_liar_alone(&names(|it| &it.suspects)) {
        Verdict::Suspected
    } else if is_liar_alone(&names(|it| &it.forgers)) {
        Verdict::Seen
    } else {
        Verdict::Outvoted
    }
}

/// Returns what a check saved as evidence in a folder.
fn list_evidence(folder: &Path) -> Result<Vec<PathBuf>, LiarsError> {
    let failed = |cause| LiarsError::System {
        path: folder.to_owned(),
        cause,
    };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let is_evidence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("evidence-")
    };
    paths.retain(is_evidence);
    paths.sort();
    Ok(paths)
}
