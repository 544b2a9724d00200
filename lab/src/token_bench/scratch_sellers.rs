//! Starts the market of `souk bench tokens`: processes whose providers sell the fake engine's
//! answers, and a `souk openai` server that buys them. It sets them up with the commands that users
//! type, kills providers, and reads processor times.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use souk_testnet::cluster::{Cluster, LOG};
use souk_testnet::layout;
use souk_testnet::process::Recipe;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::TokenBenchError;
use super::chat_client::Target;
use super::engine::{Engine, MODEL};

/// The price of a million output tokens, in credits.
const PRICE: &str = "0.2";

/// The slots of each provider: the most that a provider can sell.
const SLOTS: &str = "16";

/// Interval at which the test looks whether every provider sells.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// The nodes and the server.
pub(super) struct SellingMarket {
    cluster: Cluster,
    server: Server,
}

/// A `souk openai` process.
pub(super) struct Server {
    process: Child,
    target: Target,
}

impl Server {
    /// Returns where to ask it.
    pub fn target(&self) -> Target {
        self.target.clone()
    }

    async fn start(binary: &Path, folder: &Path) -> Result<Server, TokenBenchError> {
        let log = std::fs::File::create(folder.join(LOG))?;
        let mut process = Command::new(binary)
            .arg("--dir")
            .arg(folder)
            .args(["--json", "openai", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let stdout = process.stdout.take().expect("the output was asked for");
        let line = BufReader::new(stdout).lines().next_line().await?;
        let line = line.unwrap_or_default();
        let failed = || TokenBenchError::Command {
            command: "openai".to_owned(),
            output: line.clone(),
        };
        let ready: Value = serde_json::from_str(&line).map_err(|_| failed())?;
        let url = ready["url"].as_str().ok_or_else(failed)?;
        let address = url.trim_start_matches("http://").trim_end_matches("/v1");
        let address = address.parse().map_err(|_| failed())?;
        let key_file = ready["key_file"].as_str().ok_or_else(failed)?;
        let key = std::fs::read_to_string(key_file)?.trim().to_owned();
        Ok(Server {
            process,
            target: Target::new(address, Some(key)),
        })
    }
}

impl SellingMarket {
    /// Makes the providers' folders in a testnet's `folder`, starts all nodes and the server, and
    /// waits until every provider sells.
    pub async fn start(
        binary: &Path,
        folder: &Path,
        providers: u32,
        engine: &Engine,
    ) -> Result<SellingMarket, TokenBenchError> {
        let url = format!("http://{}/v1", engine.address());
        for number in 1..=providers {
            let home = folder.join(layout::provider_name(number));
            let options = ["provider", "init", "--listen", "/ip4/127.0.0.1/tcp/0"];
            let engine = ["--endpoint", &url, "--model", MODEL];
            let terms = ["--out", PRICE, "--slots", SLOTS];
            let words = [&options[..], &engine, &terms].concat();
            run_command(binary, &home, &words).await?;
        }
        let mut cluster = Cluster::spawn(binary, folder)?;
        let server = async {
            cluster.wait_ready().await?;
            for number in 1..=providers {
                let name = layout::provider_name(number);
                cluster.add(provider_recipe(binary, folder, name)).await?;
            }
            loop {
                let offers = run_command(binary, folder, &["model", "show", MODEL]).await;
                let count = offers
                    .ok()
                    .and_then(|offers| Some(offers.as_array()?.len()));
                if count.is_some_and(|count| count >= providers as usize) {
                    return Server::start(binary, folder).await;
                }
                tokio::time::sleep(LOOK_PERIOD).await;
            }
        };
        match server.await {
            Ok(server) => Ok(SellingMarket { cluster, server }),
            Err(error) => {
                cluster.stop_all().await;
                Err(error)
            }
        }
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Kills a provider by its number from 0, and restarts it at once.
    pub async fn kill_provider(&mut self, number: u32) -> Result<(), TokenBenchError> {
        let name = layout::provider_name(number + 1);
        self.cluster.kill_node(&name).await?;
        Ok(self.cluster.restart_node(&name).await?)
    }

    /// Returns the processor time that the server, and all providers together, have used since
    /// they started; none where the system does not state it.
    pub fn processor_times(&self) -> [Option<Duration>; 2] {
        let nodes = self.cluster.running_nodes();
        let providers = nodes.filter(|(name, _)| name.starts_with("provider"));
        let providers = providers
            .map(|(_, process)| read_processor_time(process?))
            .sum();
        [
            self.server.process.id().and_then(read_processor_time),
            providers,
        ]
    }

    /// Stops all processes.
    pub async fn stop(mut self) {
        // An ended process is stopped, too.
        let _ = self.server.process.kill().await;
        self.cluster.stop_all().await;
    }
}

/// Returns how to start a provider whose folder has no file of the testnet's own form.
fn provider_recipe(binary: &Path, folder: &Path, name: String) -> Recipe {
    let home = folder.join(&name);
    let dir = home.to_string_lossy();
    let words = ["--dir", &dir, "provider", "run", "--until-stdin-closes"];
    Recipe {
        binary: PathBuf::from(binary),
        arguments: words
            .into_iter()
            .chain(["--drain", "0"])
            .map(str::to_owned)
            .collect(),
        log: home.join(LOG),
        name,
    }
}

/// Runs a command of `souk` to its end, and returns the JSON that it prints.
async fn run_command(binary: &Path, home: &Path, words: &[&str]) -> Result<Value, TokenBenchError> {
    let mut command = Command::new(binary);
    let command = command.arg("--dir").arg(home).arg("--json").args(words);
    let ended = command.stdin(Stdio::null()).output().await?;
    if !ended.status.success() {
        let output = [ended.stdout, ended.stderr].concat();
        return Err(TokenBenchError::Command {
            command: words.join(" "),
            output: String::from_utf8_lossy(&output).trim().to_owned(),
        });
    }
    Ok(serde_json::from_slice(&ended.stdout).unwrap_or_default())
}

/// Returns the processor time of a process, in user mode and in the system's.
#[cfg(target_os = "linux")]
fn read_processor_time(process: u32) -> Option<Duration> {
    let path = PathBuf::from(format!("/proc/{process}/stat"));
    let text = std::fs::read_to_string(path).ok()?;
    // The second field is the program's name in brackets, which can hold spaces.
    let fields = text.rsplit_once(')')?.1;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks
        .map(|field| field.parse::<u64>().ok())
        .sum::<Option<_>>()?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1_000 / ticks_per_second))
}

#[cfg(not(target_os = "linux"))]
fn read_processor_time(_process: u32) -> Option<Duration> {
    None
}
