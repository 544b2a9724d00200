//! Supervises a testnet for `souk testnet up`: one process starts the nodes, restarts those that
//! end, and stops all. It holds the lock of the testnet's folder, so a folder has at most one
//! supervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use souk_folder::config::ConfigError;
use souk_folder::market_file::{MARKET_FILE, MarketFile};

use crate::cluster::{Cluster, LOG};
use crate::layout::{self, LayoutError};
use crate::ports::Ports;
use crate::process::{Recipe, StartError};
use crate::signal::{self, Signal};

/// The file that the supervisor locks.
const LOCK_FILE: &str = "lock";
/// The file with the supervisor's process id.
const PID_FILE: &str = "testnet.pid";

/// The name of the gateway process.
pub const GATEWAY: &str = "gateway";
/// The folder of the gateway's log within the testnet's folder: the gateway spends as the buyer.
pub const GATEWAY_HOME: &str = "buyer";

/// Interval of the checks for ended nodes.
const WATCH_PERIOD: Duration = Duration::from_millis(200);
/// Pauses before the restart of an ended node: the first one, and the maximum for a node that does
/// not run for longer than that.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A supervisor must stop its nodes within this time.
const DOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// A running testnet.
#[derive(Debug)]
pub struct Supervisor {
    folder: PathBuf,
    cluster: Cluster,
    // This value holds both until the nodes are stopped.
    _lock: File,
    _ports: Ports,
}

/// Why a testnet could not be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Another supervisor holds the folder.
    #[error("a testnet is already running in {folder}{}", pid_text(.pid))]
    Running {
        /// The testnet's folder.
        folder: PathBuf,
        /// The process id of its supervisor, if known.
        pid: Option<u32>,
    },
    /// No testnet runs in the folder.
    #[error("no testnet is running in {folder}")]
    NotRunning {
        /// The testnet's folder.
        folder: PathBuf,
    },
    /// The file system refused.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file or folder that failed.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder could not be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The market file could not be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The supervisor does not stop.
    #[error("the supervisor (process {pid}) did not stop within {} s", DOWN_TIMEOUT.as_secs())]
    Stuck {
        /// The supervisor's process id.
        pid: u32,
    },
}

/// An incident of a node in a supervised testnet.
#[derive(Clone, Debug)]
pub enum Incident {
    /// The named node ended by itself.
    Ended(String),
    /// The named node was restarted.
    Restarted(String),
    /// The named node could not be restarted, for this reason.
    NotRestarted(String, String),
}

impl Supervisor {
    /// Lays the folder out, if it is new, and starts every node in it with `binary`. The nodes will
    /// serve once [`Supervisor::wait_ready`] has returned.
    ///
    /// # Errors
    /// If the folder cannot be used, or is in use.
    pub fn spawn(
        binary: &Path,
        folder: &Path,
        shape: &layout::Config,
    ) -> Result<Supervisor, SupervisorError> {
        let lock = lock_folder(folder)?;
        let ports = match MarketFile::read(&folder.join(MARKET_FILE)) {
            Ok(_) => Ports::default(),
            Err(ConfigError::Missing { .. }) => layout::create_testnet(folder, shape)?,
            Err(error) => return Err(error.into()),
        };
        let path = folder.join(PID_FILE);
        fs::write(&path, std::process::id().to_string())
            .map_err(|source| SupervisorError::File { path, source })?;
        let cluster = Cluster::spawn(binary, folder)?;
        Ok(Supervisor {
            folder: folder.to_owned(),
            cluster,
            _lock: lock,
            _ports: ports,
        })
    }

    /// Waits until every node serves.
    ///
    /// # Errors
    /// The first failure. You must still stop the supervisor.
    pub async fn wait_ready(&mut self) -> Result<(), SupervisorError> {
        Ok(self.cluster.wait_ready().await?)
    }

    /// Starts another process after the nodes serve. The supervisor restarts it like a node and
    /// stops it first. Its log is in `home`, a folder of the testnet.
    ///
    /// # Errors
    /// If the process does not start. You must still stop the supervisor.
    pub async fn add(
        &mut self,
        binary: &Path,
        name: &str,
        arguments: &[&str],
        home: &str,
    ) -> Result<(), SupervisorError> {
        let recipe = Recipe {
            name: name.to_owned(),
            binary: binary.to_owned(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            log: self.folder.join(home).join(LOG),
        };
        Ok(self.cluster.add(recipe).await?)
    }

    /// Returns the nodes.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Restarts nodes that end until `stop` completes; then stops them all.
    pub async fn run(mut self, stop: impl Future<Output = ()>, mut tell: impl FnMut(Incident)) {
        tokio::pin!(stop);
        let mut pauses: BTreeMap<String, (Instant, Duration)> = BTreeMap::new();
        let mut ended: BTreeSet<String> = BTreeSet::new();
        'watch: loop {
            tokio::select! {
                () = &mut stop => break,
                () = tokio::time::sleep(WATCH_PERIOD) => {}
            }
            for name in self.cluster.reap_nodes() {
                tell(Incident::Ended(name.clone()));
                delay_restart(&mut pauses, &name);
                ended.insert(name);
            }
            let is_due = |name: &&String| {
                let (since, pause) = pauses[*name];
                since.elapsed() >= pause
            };
            let due: Vec<String> = ended.iter().filter(is_due).cloned().collect();
            for name in due {
                let started = tokio::select! {
                    () = &mut stop => break 'watch,
                    started = self.cluster.restart_node(&name) => started,
                };
                tell(match started {
                    Ok(()) => {
                        ended.remove(&name);
                        Incident::Restarted(name)
                    }
                    Err(error) => {
                        // The reason of the failure can pass, for example a full disk.
                        delay_restart(&mut pauses, &name);
                        Incident::NotRestarted(name, error.to_string())
                    }
                });
            }
        }
        self.stop_all().await;
    }

    /// Stops every node.
    pub async fn stop_all(self) {
        self.cluster.stop_all().await;
        // The lock shows whether a testnet runs; the file is a convenience.
        let _ = fs::remove_file(self.folder.join(PID_FILE));
    }
}

/// Makes a node wait before its restart: longer if it ended often lately.
fn delay_restart(pauses: &mut BTreeMap<String, (Instant, Duration)>, name: &str) {
    let last = pauses.get(name).copied();
    let pause = match last.filter(|(at, _)| at.elapsed() < RESTART_PAUSE_MAX * 2) {
        Some((_, pause)) => (pause * 2).min(RESTART_PAUSE_MAX),
        None => RESTART_PAUSE,
    };
    pauses.insert(name.to_owned(), (Instant::now(), pause));
}

/// Stops the testnet that runs in `folder`, from another process. Once this has returned, you can
/// start another one there.
pub fn stop_testnet(folder: &Path) -> Result<(), SupervisorError> {
    let pid = running_pid(folder)?;
    signal::send_signal(pid, Signal::Terminate).map_err(|source| SupervisorError::File {
        path: folder.join(PID_FILE),
        source,
    })?;
    let begin = Instant::now();
    while lock_folder(folder).is_err() {
        if begin.elapsed() > DOWN_TIMEOUT {
            return Err(SupervisorError::Stuck { pid });
        }
        std::thread::sleep(WATCH_PERIOD);
    }
    Ok(())
}

/// Returns the process id of the supervisor that runs for `folder`.
///
/// # Errors
/// If no supervisor runs.
pub fn running_pid(folder: &Path) -> Result<u32, SupervisorError> {
    let is_free = !folder.join(MARKET_FILE).exists() || lock_folder(folder).is_ok();
    let pid = if is_free { None } else { read_pid(folder) };
    pid.ok_or_else(|| SupervisorError::NotRunning {
        folder: folder.to_owned(),
    })
}

fn lock_folder(folder: &Path) -> Result<File, SupervisorError> {
    let path = folder.join(LOCK_FILE);
    let failed = |source| SupervisorError::File {
        path: path.clone(),
        source,
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(SupervisorError::Running {
            folder: folder.to_owned(),
            pid: read_pid(folder),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn read_pid(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join(PID_FILE))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn pid_text(pid: &Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (process {pid})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock_folder(folder.path()).unwrap();
        assert!(matches!(
            lock_folder(folder.path()),
            Err(SupervisorError::Running { .. })
        ));
        drop(held);
        lock_folder(folder.path()).unwrap();
    }

    #[test]
    fn what_is_not_up_cannot_be_taken_down() {
        let folder = tempfile::tempdir().unwrap();
        let refused = stop_testnet(folder.path()).unwrap_err();
        assert!(matches!(refused, SupervisorError::NotRunning { .. }));
    }
}
