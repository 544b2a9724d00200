//! `souk testnet …`: a whole market on this machine.

mod chaos;
mod gossip;
mod hostile;
mod sim;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use souk_testnet::layout;
use souk_testnet::process::{READY, StartError};
use souk_testnet::supervisor::{self, Incident, Supervisor, SupervisorError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::args::{Output, Testnet};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, join, unreachable_market};
use crate::show::balance::Balances;
use crate::{show, stop};

/// How often a new testnet's book is looked at until every provider is in it.
const BOOK_PERIOD: std::time::Duration = std::time::Duration::from_millis(50);
/// How long that may take.
const BOOK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

/// Runs a command on a testnet.
pub async fn run(folder: &Path, output: Output, command: Testnet) -> Outcome {
    match command {
        Testnet::Up {
            detach: false,
            validators,
        } => up(folder, output, validators).await,
        Testnet::Up {
            detach: true,
            validators,
        } => detach(folder, output, validators).await,
        Testnet::Down => {
            supervisor::down(folder).map_err(from_supervisor)?;
            show::line(
                output,
                &serde_json::json!({ "stopped": folder }),
                "the testnet is down",
            );
            Ok(())
        }
        Testnet::Status => status(folder, output).await,
        Testnet::Sim(args) => sim::run(output, &args),
        Testnet::Chaos(args) => chaos::run(output, &args).await,
        Testnet::Hostile(args) => hostile::run(output, &args).await,
        Testnet::Gossip(args) => gossip::run(output, &args).await,
    }
}

/// This program, which is also every node.
pub fn binary() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        let cause = format!("cannot tell where this program is: {error}");
        Failure::new(Kind::Unexpected, cause, "")
    })
}

/// Starts the nodes of `folder`, and hands them over while they get ready.
pub fn spawn(folder: &Path, shape: &layout::Config) -> Result<Supervisor, Failure> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    Supervisor::spawn(&binary()?, &folder, shape).map_err(from_supervisor)
}

/// Waits until every node serves and every provider has an ask in the book.
pub async fn ready(folder: &Path, supervisor: &mut Supervisor) -> Outcome {
    supervisor.ready().await.map_err(from_supervisor)?;
    let filling = tokio::time::timeout(BOOK_TIMEOUT, filled(folder)).await;
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
async fn filled(folder: &Path) -> Outcome {
    let buyer = join(folder).await?;
    let names = layout::nodes(folder);
    let providers = names
        .iter()
        .filter(|name| name.starts_with("provider"))
        .count();
    while buyer
        .broker()
        .book()
        .await
        .map_err(unreachable_market)?
        .len()
        < providers
    {
        tokio::time::sleep(BOOK_PERIOD).await;
    }
    Ok(())
}

async fn up(folder: &Path, output: Output, validators: u32) -> Outcome {
    let shape = layout::Config {
        validators,
        ..layout::Config::default()
    };
    let mut supervisor = spawn(folder, &shape)?;
    let ready = tokio::select! {
        ready = ready(folder, &mut supervisor) => Some(ready),
        () = stop::asked() => None,
    };
    let Some(Ok(())) = ready else {
        supervisor.stop().await;
        return ready.unwrap_or(Ok(()));
    };
    let nodes: Vec<_> = supervisor
        .cluster()
        .running()
        .map(|(n, p)| (n.to_owned(), p))
        .collect();
    let json = serde_json::json!({ "ready": true, "dir": folder, "nodes": nodes });
    let text = format!(
        "{READY} {} nodes in {}; stop with Ctrl-C or `souk --dir {} testnet down`",
        nodes.len(),
        folder.display(),
        folder.display(),
    );
    show::line(output, &json, &text);
    supervisor.run(stop::asked(), tell).await;
    Ok(())
}

fn tell(incident: Incident) {
    let text = match incident {
        Incident::Ended(name) => format!("{name} ended; it is started again"),
        Incident::Restarted(name) => format!("{name} is back"),
        Incident::NotRestarted(name, why) => format!("{name} could not be started: {why}"),
    };
    // Nobody may be reading any more: a detached testnet outlives its terminal.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Starts a supervisor that outlives this process, and waits until it is ready.
async fn detach(folder: &Path, output: Output, validators: u32) -> Outcome {
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
    let mut child = Command::new(binary()?)
        .arg("--dir")
        .arg(folder)
        .args(["testnet", "up", "--validators", &validators.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        // Not of this terminal: its Ctrl-C is not meant for it.
        .process_group(0)
        .spawn()
        .map_err(unexpected)?;
    let stdout = child
        .stdout
        .take()
        .expect("the standard output was asked for");
    let mut lines = BufReader::new(stdout).lines();
    if let Ok(Some(line)) = lines.next_line().await {
        let json = serde_json::json!({ "ready": true, "dir": folder, "pid": child.id() });
        show::line(output, &json, &line.replace("Ctrl-C or ", ""));
        return Ok(());
    }
    Err(failed_child(&mut child, &log).await)
}

/// The failure of a supervisor that ended, in its own words.
async fn failed_child(child: &mut tokio::process::Child, log: &Path) -> Failure {
    let code = child.wait().await.ok().and_then(|status| status.code());
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let after = |mark: &str| said.lines().find_map(|line| line.strip_prefix(mark));
    let cause = after("error: ").unwrap_or("the testnet did not start");
    let hint = after(" hint: ").unwrap_or_default();
    Failure::new(Kind::of_code(code), cause, hint)
}

async fn status(folder: &Path, output: Output) -> Outcome {
    let buyer = join(folder).await?;
    let statuses = buyer.broker().statuses().await;
    let balances = Balances::read(buyer.broker(), Some(buyer.account())).await?;
    match output {
        Output::Json => show::json(&show::status::to_json(&statuses, &balances)),
        Output::Text => show::status::print(&statuses, &balances),
    }
    Ok(())
}

/// A failure of a testnet as a whole.
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
