//! Runs one node as a child process: starts it, waits until it is ready, kills and restarts it.
//!
//! A node's standard input is a pipe from the process that started it. When that process ends for
//! any reason, the pipe closes and the node stops itself, so killing the testnet leaves no nodes
//! behind.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A node must be ready within this time; an ended one is noticed at once. Measuring a processor
/// takes the longest, and longer on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A node must withdraw its asks and close its files within this time, otherwise it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The file next to a node's log with its process id, present while it serves: for `kill`.
const PID_FILE: &str = "pid";

/// The first word of the line that a node prints to standard output once it serves.
pub const READY: &str = "ready";

/// The Windows flag for a new process group.
#[cfg(windows)]
const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;

/// The command and the files with which to start a node.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The node's name, such as `validator-1`.
    pub name: String,
    /// The `souk` binary.
    pub binary: PathBuf,
    /// The node's arguments.
    pub arguments: Vec<String>,
    /// The file for the node's standard error.
    pub log: PathBuf,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    recipe: Recipe,
    child: Child,
    // The node's output until it reports that it is ready.
    stdout_lines: Option<Lines<BufReader<ChildStdout>>>,
    // This process holds the pipe but never writes to it: see the module's doc.
    _stdin: Option<ChildStdin>,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system did not start the process.
    #[error("cannot start {name}: {source}")]
    Spawn {
        /// The node's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The log file could not be opened.
    #[error("cannot write the log {path}: {source}")]
    Log {
        /// The log file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The node ended before it served.
    #[error("{name} stopped before it was ready: {last} (its log: {log})")]
    Ended {
        /// The node's name.
        name: String,
        /// The node's exit code, if it had one.
        code: Option<i32>,
        /// The last words of the node's log.
        last: String,
        /// The log file.
        log: PathBuf,
    },
    /// The node did not serve in time.
    #[error("{name} was not ready within {} s (its log: {log})", READY_TIMEOUT.as_secs())]
    Timeout {
        /// The node's name.
        name: String,
        /// The log file.
        log: PathBuf,
    },
}

impl Recipe {
    /// Returns the same node behind another command that receives the node's own.
    #[must_use]
    pub fn wrap_in_command(mut self, before: Vec<String>) -> Recipe {
        let mut words = before.into_iter();
        if let Some(program) = words.next() {
            let own = std::mem::replace(&mut self.binary, PathBuf::from(program));
            let own = [own.to_string_lossy().into_owned()];
            self.arguments = words.chain(own).chain(self.arguments).collect();
        }
        self
    }
}

impl Node {
    /// Starts the process. It will serve once [`Node::wait_ready`] has returned.
    ///
    /// # Errors
    /// If the system does not start the process.
    pub fn spawn(recipe: Recipe) -> Result<Node, StartError> {
        let mut child = spawn_child(&recipe)?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .expect("the standard output was asked for");
        let stdout_lines = Some(BufReader::new(stdout).lines());
        Ok(Node {
            recipe,
            child,
            stdout_lines,
            _stdin: stdin,
        })
    }

    /// Waits until the process reports that it serves.
    ///
    /// # Errors
    /// If the process ends or stays silent for too long.
    pub async fn wait_ready(&mut self) -> Result<(), StartError> {
        let Some(mut lines) = self.stdout_lines.take() else {
            return Ok(());
        };
        let ready = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if line.starts_with(READY) {
                    return true;
                }
            }
            false
        };
        let (name, log) = (self.recipe.name.clone(), self.recipe.log.clone());
        match tokio::time::timeout(READY_TIMEOUT, ready).await {
            Ok(true) => {}
            Ok(false) => {
                let code = self
                    .child
                    .wait()
                    .await
                    .ok()
                    .and_then(|status| status.code());
                let last = last_words(&log);
                return Err(StartError::Ended {
                    name,
                    code,
                    last,
                    log,
                });
            }
            Err(_) => return Err(StartError::Timeout { name, log }),
        }
        self.keep_process_id();
        // This task reads further output; otherwise the pipe would fill and block the node.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(())
    }

    /// Returns how the process was started.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Returns the process id, while the process runs.
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the exit status, if the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        let ended = self.child.try_wait().ok().flatten();
        if ended.is_some() {
            self.forget_process_id();
        }
        ended
    }

    /// Kills the process at once, as a power cut would (SIGKILL).
    pub async fn kill(mut self) -> Recipe {
        // An error here means that the process has ended already.
        let _ = self.child.kill().await;
        self.forget_process_id();
        self.recipe
    }

    /// Asks the process to stop, and kills it if it does not.
    pub async fn stop(mut self) -> Recipe {
        drop(self._stdin.take());
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                node = self.recipe.name,
                "a node did not stop in time and was killed"
            );
            let _ = self.child.kill().await;
        }
        self.forget_process_id();
        self.recipe
    }

    fn keep_process_id(&self) {
        let Some(process) = self.process_id() else {
            return;
        };
        // The node can serve without the file, for example on a full disk.
        if let Err(error) = fs::write(self.process_id_path(), format!("{process}\n")) {
            tracing::debug!(%error, node = self.recipe.name, "its process id could not be stored");
        }
    }

    fn forget_process_id(&self) {
        // If the node never served, there is no file.
        let _ = fs::remove_file(self.process_id_path());
    }

    fn process_id_path(&self) -> PathBuf {
        self.recipe.log.with_file_name(PID_FILE)
    }
}

/// Returns the process id of a serving node, by the folder of its log. The process may no longer
/// exist if its parent was killed.
pub fn serving_process_id(home: &Path) -> Option<u32> {
    let text = fs::read_to_string(home.join(PID_FILE)).ok()?;
    text.trim().parse().ok()
}

/// Puts a process in a group of its own, which does not receive the terminal's Ctrl-C.
pub fn set_process_group(command: &mut Command) -> &mut Command {
    #[cfg(unix)]
    command.process_group(0);
    #[cfg(windows)]
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
    command
}

fn spawn_child(recipe: &Recipe) -> Result<Child, StartError> {
    let log = File::options().create(true).append(true).open(&recipe.log);
    let log = log.map_err(|source| StartError::Log {
        path: recipe.log.clone(),
        source,
    })?;
    // The terminal's Ctrl-C goes to the testnet, which stops its nodes.
    set_process_group(&mut Command::new(&recipe.binary))
        .args(&recipe.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| StartError::Spawn {
            name: recipe.name.clone(),
            source,
        })
}

/// Returns the last error in a log, or its last line if there is no error.
fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let error = lines
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("error: "));
    error
        .or(lines.last().copied())
        .unwrap_or("it said nothing")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Path, script: &str) -> Recipe {
        Recipe {
            name: "node".to_owned(),
            binary: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            log: folder.join("log"),
        }
    }

    #[tokio::test]
    async fn a_node_stops_when_its_standard_input_closes() {
        let folder = tempfile::tempdir().unwrap();
        let mut node = Node::spawn(shell(folder.path(), "echo ready; cat")).unwrap();
        assert_eq!(
            serving_process_id(folder.path()),
            None,
            "it does not serve yet"
        );
        node.wait_ready().await.unwrap();
        assert_eq!(serving_process_id(folder.path()), node.process_id());
        let recipe = node.stop().await;
        assert_eq!(recipe.name, "node");
        assert_eq!(serving_process_id(folder.path()), None);
    }

    #[tokio::test]
    async fn a_node_that_ends_early_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo error: the port is in use >&2; echo ' hint: another' >&2; exit 5";
        let mut node = Node::spawn(shell(folder.path(), script)).unwrap();
        let failed = node.wait_ready().await.unwrap_err();
        assert!(
            failed.to_string().contains("ready: the port is in use"),
            "{failed}"
        );
        assert!(matches!(failed, StartError::Ended { code: Some(5), .. }));
    }
}
