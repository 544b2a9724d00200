//! `souk validator run` and `souk provider run`: runs a node in the foreground.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use souk_folder::config::{self, KEY_FILE, ProviderFile, VALIDATOR_FILE};
use souk_folder::facts::FactLogError;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::metrics::PageMaker;
use souk_node::endpoint::EndpointError;
use souk_node::endpoint::upstream::UpstreamError;
use souk_node::market::{Receipt, ReceiptBody};
use souk_node::provider::{self, HoldError, ProviderError};
use souk_node::validator::node::{self, ValidatorNode, ValidatorNodeError};
use souk_sandbox::SandboxFault;
use tokio::sync::broadcast;

use super::key::from_key;
use crate::args::{ProviderRunArgs, RunArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_network, from_reach, unreachable_market};
use crate::show::{self, format_count};
use crate::stop::Requests;

/// Hint for an unusable library.
pub const LIBRARY_HINT: &str = "correct `onnxruntime` in provider.toml, or leave it out to use the \
                                library that souk finds";

/// Runs a validator until a signal stops it.
pub async fn run_validator(folder: &Path, run: RunArgs) -> Outcome {
    let config = node::ValidatorNodeConfig {
        home: folder.to_owned(),
        key: key(folder)?,
        market: MarketFile::read_nearest(folder).map_err(from_config)?,
        validator: config::read(&folder.join(VALIDATOR_FILE)).map_err(from_config)?,
        network: network_options(&run),
    };
    let watched = MetricsListener::bind_http(&run).await?;
    let stop = async { drop(wait_for_stop(run).await) };
    tokio::pin!(stop);
    let started = tokio::select! {
        started = ValidatorNode::start(config, report_waiting) => started,
        () = &mut stop => return Ok(()),
    };
    let validator = started.map_err(from_validator)?;
    watched.serve_metrics(validator.page_maker());
    report_ready("validator");
    validator.run(stop).await.map_err(from_validator)
}

/// Tells the user of a new validator that an operator must add it.
fn report_waiting(address: &str) {
    print_message(&format!(
        "waiting to be added: the operator runs `souk --dir FOLDER validator add {address}`"
    ));
}

/// Prints a message to standard error.
fn print_message(text: &str) {
    // A reader that went away is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{}", show::escape_controls(text));
}

/// Runs a provider until a signal stops it.
pub async fn run_provider(folder: &Path, args: ProviderRunArgs) -> Outcome {
    // This must come first: without a provider's file, the error should not be about its key.
    let file = ProviderFile::read_folder(folder).map_err(from_config)?;
    #[cfg(feature = "generate")]
    let own_engine = super::served_model::open_own_engine(&file).await?;
    #[cfg(not(feature = "generate"))]
    let own_engine = None;
    let config = provider::Config {
        home: folder.to_owned(),
        key: key(folder)?,
        market: MarketFile::read_nearest(folder).map_err(from_config)?,
        provider: file,
        network: network_options(&args.run),
        program: program_path()?,
        own_engine,
    };
    let watched = MetricsListener::bind_http(&args.run).await?;
    let mut stop = pin!(wait_for_stop(args.run));
    // Dropping a provider that starts restores what it set, such as its devices' power limits.
    let provider = tokio::select! {
        provider = provider::Provider::start(config) => provider.map_err(from_provider)?,
        _ = &mut stop => return Ok(()),
    };
    watched.serve_metrics(provider.page_maker());
    let sold = provider.advertised_resources();
    report_ready(&show::device_label(sold.model.as_str(), sold.emulated));
    let patience = args.drain;
    #[expect(
        clippy::async_yields_async,
        reason = "the second request is awaited later"
    )]
    let stop = async {
        let mut requests = stop.await;
        print_message("stopping: leases may finish; a second signal ends them with what is done");
        async move { requests.next().await }
    };
    let receipts = provider.watch_receipts();
    // A thread of its own: a terminal that takes no more text must not stop the provider.
    std::thread::spawn(move || print_sales(receipts));
    provider.run(stop, patience).await.map_err(from_provider)
}

/// Prints a line for each receipt that both sides have signed, until the provider ends.
fn print_sales(mut receipts: broadcast::Receiver<Arc<Receipt>>) {
    loop {
        match receipts.blocking_recv() {
            Ok(receipt) => show::print_notice(&describe_sale(&receipt.body)),
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                show::print_notice(&format!("{} more sold", format_count(missed, "lease")));
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Describes what a lease sold, by its receipt.
fn describe_sale(body: &ReceiptBody) -> String {
    let sold = match &body.metered {
        Some(metered) => format!(
            "{} input and {} output tokens",
            metered.input.saturating_add(metered.cached),
            metered.output
        ),
        None => format!(
            "{} of work",
            show::format_seconds(body.usage.0 as f64 / 1e6)
        ),
    };
    let (amount, buyer) = (
        show::format_credits(body.amount.0),
        show::short_id(&body.buyer),
    );
    format!(
        "lease {} sold {sold} to {buyer} for {amount} credits",
        body.lease
    )
}

fn network_options(run: &RunArgs) -> souk_network::Options {
    souk_network::Options {
        mdns: run.mdns,
        relays: run.relay,
        ..souk_network::Options::default()
    }
}

/// The metrics server of a node, if its arguments ask for one.
struct MetricsListener {
    #[cfg(feature = "gateway")]
    listener: Option<souk_gateway::HttpListener>,
}

impl MetricsListener {
    /// Listens before the node starts, so that a failure appears at once.
    #[cfg(feature = "gateway")]
    async fn bind_http(run: &RunArgs) -> Result<MetricsListener, Failure> {
        let Some(address) = run.http else {
            return Ok(MetricsListener { listener: None });
        };
        let listener = souk_gateway::HttpListener::bind_loopback(address).await;
        let listener = listener.map_err(super::serve::from_listener)?;
        print_message(&format!("metrics: http://{}/metrics", listener.address()));
        Ok(MetricsListener {
            listener: Some(listener),
        })
    }

    #[cfg(not(feature = "gateway"))]
    #[expect(clippy::unused_async, reason = "with the gateway it waits")]
    async fn bind_http(_: &RunArgs) -> Result<MetricsListener, Failure> {
        Ok(MetricsListener {})
    }

    /// Serves the metrics from now on.
    fn serve_metrics(self, figures: PageMaker) {
        #[cfg(feature = "gateway")]
        if let Some(listener) = self.listener {
            tokio::spawn(souk_gateway::serve_metrics(listener, figures));
        }
        #[cfg(not(feature = "gateway"))]
        drop(figures);
    }
}

/// Returns the path of the running program, which stays valid after an update replaces its file.
fn program_path() -> Result<PathBuf, Failure> {
    if cfg!(target_os = "linux") {
        return Ok(PathBuf::from("/proc/self/exe"));
    }
    let unknown = |error| Failure::new(Kind::State, error, "start it by its full path");
    std::env::current_exe().map_err(unknown)
}

pub fn key(folder: &Path) -> Result<NodeKey, Failure> {
    NodeKey::load(&folder.join(KEY_FILE)).map_err(from_key)
}

/// Reports to the starter of this process that the node serves.
fn report_ready(what: &str) {
    // A reader that went away is no reason to stop.
    let _ = writeln!(std::io::stdout(), "{} {what}", souk_testnet::process::READY);
}

/// Waits for the first request to stop; returns the source of further requests.
async fn wait_for_stop(run: RunArgs) -> Requests {
    let mut requests = Requests::new();
    if run.until_stdin_closes {
        requests.next_or_stdin_closed().await;
    } else {
        requests.next().await;
    }
    requests
}

pub fn from_validator(error: ValidatorNodeError) -> Failure {
    let steps = "stop it, `souk validator init --new-log` in its folder, start it, and let the \
                 operator `souk validator add` its address";
    if error.is_for_later_build() {
        let hint = "nothing is lost: start that release on the same folder, and it continues";
        return Failure::new(Kind::State, error, hint);
    }
    match error {
        ValidatorNodeError::Wiped { raft_id, .. } => {
            let hint = format!(
                "let the operator `souk validator remove {raft_id}`; then have this machine join \
                 as a new validator: {steps}"
            );
            Failure::new(Kind::State, error, hint)
        }
        ValidatorNodeError::Removed { .. } => {
            let hint = format!("to have this machine as a new validator: {steps}");
            Failure::new(Kind::State, error, hint)
        }
        ValidatorNodeError::Config(error) => from_config(error),
        ValidatorNodeError::Network(error) => from_network(error),
        ValidatorNodeError::Replica(_)
        | ValidatorNodeError::Cosigning(_)
        | ValidatorNodeError::Folder { .. } => {
            let hint = "put the damaged log aside with `souk validator init --new-log`, have the \
                        operator `souk validator remove` its old id and `souk validator add` its \
                        address; `souk validator restore` a backup first to send less";
            Failure::new(Kind::State, error, hint)
        }
        ValidatorNodeError::Impostor { .. }
        | ValidatorNodeError::Key(_)
        | ValidatorNodeError::RaftId => Failure::new(
            Kind::State,
            error,
            "compare market.json with validator.json and the key",
        ),
        ValidatorNodeError::Failure(_) => Failure::new(
            Kind::Unexpected,
            error,
            "check the disk, then start it again",
        ),
    }
}

fn from_power(error: HoldError) -> Failure {
    let hint = match error {
        HoldError::Power(_) => {
            "`souk device power` shows what may be limited; correct limits.power_watts"
        }
        HoldError::File { .. } => {
            "if the file is damaged, restore the limits with `souk device power` and remove it"
        }
    };
    Failure::new(Kind::State, error, hint)
}

/// Converts a failure of a provider.
pub fn from_provider(error: ProviderError) -> Failure {
    match error {
        ProviderError::Reach(error) => from_reach(error),
        ProviderError::Trade(error) => unreachable_market(error),
        ProviderError::Device(_) | ProviderError::Name { .. } | ProviderError::Fault => {
            Failure::new(Kind::Input, error, "correct it in the provider's file")
        }
        ProviderError::Endpoint(error) => from_endpoint(error),
        ProviderError::Library(_) => Failure::new(Kind::Input, error, LIBRARY_HINT),
        ProviderError::Direct(_) => Failure::new(
            Kind::Network,
            error,
            "it is in the provider's file, at traffic.direct",
        ),
        ProviderError::Sandbox(SandboxFault::Start(_)) => Failure::new(
            Kind::State,
            error,
            "the system starts no process for jobs; `isolation = \"none\"` in provider.toml does \
             without, for buyers you trust",
        ),
        ProviderError::Sandbox(SandboxFault::NotHere { .. }) => Failure::new(
            Kind::State,
            error,
            "`souk provider init --no-isolation` writes that",
        ),
        ProviderError::Sandbox(SandboxFault::Wall(_)) => Failure::new(
            Kind::State,
            error,
            "`souk provider status` shows which rules apply and which are missing",
        ),
        ProviderError::Sandbox(_) => Failure::new(
            Kind::Input,
            error,
            "check the device's driver, or sell another device in provider.toml",
        ),
        ProviderError::Power(error) => from_power(error),
        ProviderError::Limit(_) => Failure::new(
            Kind::Input,
            error,
            "sell another device, or change the limits",
        ),
        ProviderError::Running { .. } => Failure::new(
            Kind::State,
            error,
            "stop it first, or give another folder with --dir",
        ),
        ProviderError::Journal(FactLogError::Damaged { .. } | FactLogError::Format { .. }) => {
            let hint = "restore the file from a copy, or move it away: then leases that are open \
                        now are not settled from here";
            Failure::new(Kind::State, error, hint)
        }
        ProviderError::Writer(_) => Failure::new(
            Kind::Unexpected,
            error,
            "check the disk, then start it again: it continues with the leases it has",
        ),
        ProviderError::Group(_) | ProviderError::Store(_) | ProviderError::Journal(_) => {
            Failure::new(
                Kind::State,
                error,
                "check the folder's permissions and the space left",
            )
        }
    }
}

/// Converts an engine that cannot be sold into a failure.
pub fn from_endpoint(error: EndpointError) -> Failure {
    match error {
        EndpointError::Model(_) => Failure::new(
            Kind::Input,
            error,
            "let the engine serve it under a shorter name, such as --served-model-name in vLLM; \
             with --serve, give --model a shorter one",
        ),
        EndpointError::NoDecoder(_) => {
            Failure::new(Kind::Input, error, "use a souk with the feature `generate`")
        }
        EndpointError::Url(_) => Failure::new(Kind::Input, error, ""),
        EndpointError::Key { .. } => Failure::new(
            Kind::Input,
            error,
            "give --key-file the name of a file that holds the key alone",
        ),
        EndpointError::Unknown { .. } => {
            Failure::new(Kind::Input, error, "give --model one of these names")
        }
        EndpointError::Field(_) => Failure::new(
            Kind::Input,
            error,
            "leave it out, or give --field another name and value, such as repeat_penalty=1.0",
        ),
        EndpointError::Upstream(ref fault) => {
            let hint = hint_for_upstream(fault);
            Failure::new(Kind::Network, error, hint)
        }
    }
}

/// Returns how to mend an engine, or its URL, that does not list its models.
fn hint_for_upstream(fault: &UpstreamError) -> &'static str {
    match fault {
        UpstreamError::Refused { status, .. } => match status.as_u16() {
            401 | 403 => {
                "put a valid key into a file and name it with --key-file; souk's own servers also \
                 answer so, and are no engines"
            }
            404 | 405 | 410 => "check the URL: it ends in /v1 for most engines",
            _ => "see the engine's own log",
        },
        UpstreamError::Connect { cause, .. } if cause.kind() == ErrorKind::InvalidData => {
            "the engine does not speak TLS there: give an http:// URL"
        }
        UpstreamError::Connect { .. } => {
            "start the engine first, or correct the port; the URL ends in /v1 for most engines"
        }
        _ => "check that the URL is an engine's with OpenAI's API; it ends in /v1 for most engines",
    }
}
