//! `souk testnet …`: runs a whole market on this machine.

mod fund;
#[cfg(feature = "gateway")]
mod gateway;
mod logs;
mod profile;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use souk_testnet::layout;
use souk_testnet::process::{READY, StartError, set_process_group};
use souk_testnet::supervisor::{self, Incident, Supervisor, SupervisorError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::args::{Output, Testnet, UpArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, join_as_buyer, unreachable_market};
use crate::program::program_path;
use crate::show::balance::Balances;
use crate::{show, stop};

/// Period of the reads of a new testnet's book until every provider is in it.
const BOOK_PERIOD: std::time::Duration = std::time::Duration::from_millis(50);
/// Longest time for that.
const BOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

/// Runs a command on a testnet.
pub async fn run(folder: &Path, output: Output, command: Testnet) -> Outcome {
    match command {
        Testnet::Up(args) if args.detach => detach_testnet(folder, output, &args).await,
        Testnet::Up(args) => start_testnet(folder, output, &args).await,
        Testnet::Down => {
            supervisor::stop_testnet(folder).map_err(from_supervisor)?;
            show::print_result(
                output,
                &serde_json::json!({ "stopped": folder }),
                "the testnet is down",
            );
            Ok(())
        }
        Testnet::Status => show_status(folder, output).await,
        Testnet::Fund(args) => fund::run(folder, output, &args).await,
        Testnet::Logs(args) => logs::run(folder, output, &args).await,
        Testnet::Sim(_)
        | Testnet::Attacks(_)
        | Testnet::Chaos(_)
        | Testnet::Hostile(_)
        | Testnet::Liars(_)
        | Testnet::Gossip(_) => super::lab::run().map(drop),
    }
}

/// Starts the nodes of `folder`. You must await [`wait_until_ready`] before you use them.
pub fn spawn_nodes(folder: &Path, shape: &layout::Config) -> Result<Supervisor, Failure> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    Supervisor::spawn(&program_path()?, &folder, shape).map_err(from_supervisor)
}

/// Waits until every node serves and every provider has an ask in the book.
pub async fn wait_until_ready(folder: &Path, supervisor: &mut Supervisor) -> Outcome {
    supervisor.wait_ready().await.map_err(from_supervisor)?;
    let filling = tokio::time::timeout(BOOK_TIMEOUT, wait_for_asks(folder)).await;
    filling.unwrap_or_else(|_| {
        let cause = "not every provider placed its ask in time";
        Err(Failure::new(
            Kind::Network,
            cause,
            "look at provider-*/log.txt in the folder",
        ))
    })
}

/// Waits until there are as many asks as providers.
async fn wait_for_asks(folder: &Path) -> Outcome {
    let buyer = join_as_buyer(folder).await?;
    let names = layout::node_names(folder);
    let providers = names
        .iter()
        .filter(|name| name.starts_with("provider"))
        .count();
    while buyer
        .broker()
        .fetch_book()
        .await
        .map_err(unreachable_market)?
        .len()
        < providers
    {
        tokio::time::sleep(BOOK_PERIOD).await;
    }
    Ok(())
}

async fn start_testnet(folder: &Path, output: Output, args: &UpArgs) -> Outcome {
    let shape = layout::Config {
        validators: args.validators,
        providers: profile::profile_providers(&args.profile, args.providers)?,
        ..layout::Config::default()
    };
    let mut stops = stop::Requests::new();
    let mut supervisor = spawn_nodes(folder, &shape)?;
    let ready = tokio::select! {
        ready = start_serving(folder, &mut supervisor, args) => Some(ready),
        () = stops.next() => None,
    };
    let page = match ready {
        Some(Ok(page)) => page,
        other => {
            supervisor.stop_all().await;
            return other.map_or(Ok(()), |ready| ready.map(drop));
        }
    };
    let nodes: Vec<_> = supervisor
        .cluster()
        .running_nodes()
        .map(|(n, p)| (n.to_owned(), p))
        .collect();
    let url = page.as_ref().and_then(|page| page.split("/#").next());
    let json = serde_json::json!({
        "ready": true, "dir": folder, "nodes": nodes, "url": url, "page": page,
    });
    let text = format!("{READY} {}", up_text(folder, &json, "Ctrl-C or "));
    show::print_result(output, &json, &text);
    supervisor.run(stops.next(), report_incident).await;
    Ok(())
}

/// Describes the running testnet for people.
fn up_text(folder: &Path, facts: &Value, also: &str) -> String {
    let nodes = facts["nodes"].as_array().map_or(0, Vec::len);
    let dir = folder.display();
    let page = match (&facts["page"], &facts["url"]) {
        // Without a terminal, standard output may be a log that others can read.
        (Value::String(page), _) if std::io::stdout().is_terminal() => format!("open {page}; "),
        (_, Value::String(url)) => format!("HTTP at {url} (`souk dashboard` opens its page); "),
        _ => String::new(),
    };
    format!(
        "{nodes} processes in {dir}, a testnet, whose buyers take emulated devices unless they \
             say --real; {page}stop with {also}`souk --dir {dir} testnet down`"
    )
}

/// Waits until every node serves, and starts the gateway; returns the URL of its page.
async fn start_serving(
    folder: &Path,
    supervisor: &mut Supervisor,
    args: &UpArgs,
) -> Result<Option<String>, Failure> {
    wait_until_ready(folder, supervisor).await?;
    #[cfg(feature = "gateway")]
    return gateway::start_gateway(folder, supervisor, args).await;
    #[cfg(not(feature = "gateway"))]
    {
        let _ = args;
        Ok(None)
    }
}

fn report_incident(incident: Incident) {
    let text = match incident {
        Incident::Ended(name) => format!("{name} ended; it is started again"),
        Incident::Restarted(name) => format!("{name} is back"),
        Incident::NotRestarted(name, why) => {
            format!("{name} could not be started and is tried again: {why}")
        }
    };
    // A detached testnet outlives its terminal, so there may be no reader.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Starts a supervisor that outlives this process, and waits until it is ready.
async fn detach_testnet(folder: &Path, output: Output, args: &UpArgs) -> Outcome {
    std::fs::create_dir_all(folder).map_err(|error| {
        let cause = format!("cannot make {}: {error}", folder.display());
        Failure::new(Kind::State, cause, "choose another folder with --dir")
    })?;
    let log = folder.join("testnet.log");
    let unexpected = |error: std::io::Error| {
        Failure::new(
            Kind::Unexpected,
            format!("cannot start the testnet: {error}"),
            "",
        )
    };
    let errors = std::fs::File::create(&log).map_err(unexpected)?;
    // The terminal's Ctrl-C must not reach it.
    let mut child = set_process_group(&mut Command::new(program_path()?))
        .arg("--dir")
        .arg(folder)
        .args(["--json", "testnet", "up"])
        .args(["--validators", &args.validators.to_string()])
        .args(["--profile", &args.profile])
        .args(args.providers.map(|count| format!("--providers={count}")))
        .args(gateway_args(args))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(unexpected)?;
    let stdout = child
        .stdout
        .take()
        .expect("the standard output was asked for");
    let mut lines = BufReader::new(stdout).lines();
    let line = lines.next_line().await.ok().flatten().unwrap_or_default();
    let mut facts: Value = serde_json::from_str(&line).unwrap_or_default();
    if facts["ready"] == true {
        facts["pid"] = child.id().into();
        let text = format!("{READY} {}", up_text(folder, &facts, ""));
        show::print_result(output, &facts, &text);
        return Ok(());
    }
    // The supervisor has ended and described its failure.
    let code = child.wait().await.ok().and_then(|status| status.code());
    let said = |name: &str| facts["error"][name].as_str();
    let cause = said("cause").unwrap_or("the testnet did not start");
    let log = format!("its log is {}", log.display());
    Err(Failure::new(
        Kind::of_code(code),
        cause,
        said("hint").unwrap_or(&log),
    ))
}

/// Returns the supervisor's arguments about its gateway.
fn gateway_args(args: &UpArgs) -> Vec<String> {
    #[cfg(feature = "gateway")]
    {
        let mut told = match (args.no_http, args.http) {
            (true, _) => vec!["--no-http".to_owned()],
            (false, Some(address)) => vec!["--http".to_owned(), address.to_string()],
            (false, None) => Vec::new(),
        };
        let page = [
            (args.page.trade, "--trade"),
            (args.page.operate, "--operate"),
        ];
        told.extend(
            page.iter()
                .filter(|(is, _)| *is)
                .map(|(_, word)| (*word).to_owned()),
        );
        told
    }
    #[cfg(not(feature = "gateway"))]
    {
        let _ = args;
        Vec::new()
    }
}

async fn show_status(folder: &Path, output: Output) -> Outcome {
    let buyer = join_as_buyer(folder).await?;
    let statuses = buyer.broker().fetch_statuses().await;
    let balances = Balances::read(buyer.broker(), Some(buyer.account())).await?;
    match output {
        Output::Json => show::print_json(&show::status::to_json(&statuses, &balances)),
        Output::Text => show::status::print_status(&statuses, &balances),
    }
    Ok(())
}

/// Converts a failure of a testnet.
pub fn from_supervisor(error: SupervisorError) -> Failure {
    match error {
        SupervisorError::Running { .. } => {
            let hint = "stop it with `souk testnet down`, or use another folder with --dir";
            Failure::new(Kind::State, error, hint)
        }
        SupervisorError::NotRunning { .. } => Failure::new(
            Kind::State,
            error,
            "give the folder of `souk testnet up` with --dir",
        ),
        SupervisorError::Config(error) => from_config(error),
        SupervisorError::Layout(_) => {
            Failure::new(Kind::State, error, "choose another folder with --dir")
        }
        SupervisorError::File { .. } => Failure::new(
            Kind::State,
            error,
            "check the folder's permissions and the space left",
        ),
        SupervisorError::Start(ref cause) => {
            let kind = match cause {
                StartError::Ended { code, .. } => Kind::of_code(*code),
                _ => Kind::Unexpected,
            };
            Failure::new(kind, error, "the node's log says more")
        }
        SupervisorError::Stuck { .. } => {
            Failure::new(Kind::Unexpected, error, "end that process by its id")
        }
    }
}
