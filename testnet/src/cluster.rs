//! Controls the nodes of a testnet as processes, each by its name: starts, kills, restarts and
//! signals them, and finds those that have ended. The supervisor of a testnet and the tests of
//! `souk-lab` use it. A testnet is a market of real processes on one machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::layout;
use crate::process::{Node, Recipe, StartError};
use crate::signal::{self, Signal};

/// The file in a node's folder for its standard error.
pub const LOG: &str = "log.txt";

/// The nodes of a testnet, running or stopped, by name.
#[derive(Debug)]
pub struct Cluster {
    running: BTreeMap<String, Node>,
    stopped: BTreeMap<String, Recipe>,
}

/// Why a node could not be started, killed or signalled.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The testnet has no node with this name.
    #[error("there is no node {name} in this testnet: it has {known}")]
    Unknown {
        /// The given name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system sent no signal to the node.
    #[error("no signal was sent to {name}: {cause}")]
    Signal {
        /// The node's name.
        name: String,
        /// The system's error.
        cause: std::io::Error,
    },
}

impl Cluster {
    /// Controls nodes that run already.
    pub fn from_running(running: BTreeMap<String, Node>) -> Cluster {
        Cluster {
            running,
            stopped: BTreeMap::new(),
        }
    }

    /// Starts every node laid out in `folder` at once, because validators wait for each other and
    /// providers wait for validators. The nodes will serve once [`Cluster::wait_ready`] has
    /// returned.
    ///
    /// # Errors
    /// If a node does not start; the others will then be killed.
    pub fn spawn(binary: &Path, folder: &Path) -> Result<Cluster, StartError> {
        Cluster::spawn_behind(binary, folder, |_| Vec::new())
    }

    /// Starts every node behind a command that depends on its name, for example one that enters a
    /// network namespace. If the command is empty, the node starts directly.
    ///
    /// # Errors
    /// As for [`Cluster::spawn`].
    pub fn spawn_behind(
        binary: &Path,
        folder: &Path,
        wrapper: impl Fn(&str) -> Vec<String>,
    ) -> Result<Cluster, StartError> {
        let recipes = layout::node_names(folder).into_iter().map(|name| {
            let command = wrapper(&name);
            node_recipe(binary, folder, name).wrap_in_command(command)
        });
        let spawn = |recipe: Recipe| Ok((recipe.name.clone(), Node::spawn(recipe)?));
        let running = recipes.map(spawn).collect::<Result<_, StartError>>()?;
        Ok(Cluster {
            running,
            stopped: BTreeMap::new(),
        })
    }

    /// Waits until every node serves.
    ///
    /// # Errors
    /// The first failure, at once, because other nodes can wait for that one. The others continue,
    /// and you must still stop them.
    pub async fn wait_ready(&mut self) -> Result<(), StartError> {
        let all = self.running.values_mut().map(Node::wait_ready);
        futures::future::try_join_all(all).await.map(drop)
    }

    /// Starts another node, and waits until it serves.
    ///
    /// # Errors
    /// If the node does not start.
    pub async fn add(&mut self, recipe: Recipe) -> Result<(), StartError> {
        let mut node = Node::spawn(recipe)?;
        node.wait_ready().await?;
        self.running.insert(node.recipe().name.clone(), node);
        Ok(())
    }

    /// Returns the names of the running nodes, with their process ids.
    pub fn running_nodes(&self) -> impl Iterator<Item = (&str, Option<u32>)> {
        self.running
            .iter()
            .map(|(name, node)| (name.as_str(), node.process_id()))
    }

    /// Kills a node at once, as a power cut would.
    pub async fn kill_node(&mut self, name: &str) -> Result<(), ControlError> {
        let node = self
            .running
            .remove(name)
            .ok_or_else(|| self.unknown_node(name))?;
        let recipe = node.kill().await;
        self.stopped.insert(name.to_owned(), recipe);
        Ok(())
    }

    /// Restarts a node that was killed or has ended.
    ///
    /// # Errors
    /// If no node has this name, or it does not start.
    pub async fn restart_node(&mut self, name: &str) -> Result<(), ControlError> {
        let recipe = self
            .stopped
            .get(name)
            .cloned()
            .ok_or_else(|| self.unknown_node(name))?;
        let mut node = Node::spawn(recipe)?;
        node.wait_ready().await?;
        self.stopped.remove(name);
        self.running.insert(name.to_owned(), node);
        Ok(())
    }

    /// Suspends a node, or resumes it.
    ///
    /// # Errors
    /// If no such node runs, or the system refuses.
    pub fn signal_node(&self, name: &str, signal: Signal) -> Result<(), ControlError> {
        let node = self
            .running
            .get(name)
            .ok_or_else(|| self.unknown_node(name))?;
        let process = node.process_id().ok_or_else(|| self.unknown_node(name))?;
        signal::send_signal(process, signal).map_err(|cause| ControlError::Signal {
            name: name.to_owned(),
            cause,
        })
    }

    /// Returns the names of the nodes that ended by themselves since the last call.
    pub fn reap_nodes(&mut self) -> Vec<String> {
        let ended = |(name, node): (&String, &mut Node)| node.exit_status().map(|_| name.clone());
        let names: Vec<String> = self.running.iter_mut().filter_map(ended).collect();
        for name in &names {
            let node = self
                .running
                .remove(name)
                .expect("it was found there just now");
            self.stopped.insert(name.clone(), node.recipe().clone());
        }
        names
    }

    /// Returns the names of the nodes that were killed or have ended.
    pub fn stopped_nodes(&self) -> Vec<String> {
        self.stopped.keys().cloned().collect()
    }

    /// Stops every node: validators last, so that the others can withdraw their asks.
    pub async fn stop_all(self) {
        let (validators, others): (Vec<_>, Vec<_>) = self
            .running
            .into_values()
            .partition(|node| node.recipe().name.starts_with("validator"));
        for group in [others, validators] {
            let stopping: Vec<_> = group.into_iter().map(|n| tokio::spawn(n.stop())).collect();
            for stop in stopping {
                stop.await.expect("stopping a node does not panic");
            }
        }
    }

    fn unknown_node(&self, name: &str) -> ControlError {
        let known: Vec<_> = self
            .running
            .keys()
            .chain(self.stopped.keys())
            .cloned()
            .collect();
        ControlError::Unknown {
            name: name.to_owned(),
            known: known.join(", "),
        }
    }
}

fn node_recipe(binary: &Path, folder: &Path, name: String) -> Recipe {
    let home = folder.join(&name);
    let role = if name.starts_with("validator") {
        "validator"
    } else {
        "provider"
    };
    let dir = home.to_string_lossy();
    let mut arguments = vec!["--dir", &dir, role, "run", "--until-stdin-closes"];
    if role == "provider" {
        // A testnet that stops does not wait for its jobs.
        arguments.extend(["--drain", "0"]);
    }
    Recipe {
        name,
        binary: PathBuf::from(binary),
        arguments: arguments.into_iter().map(str::to_owned).collect(),
        log: home.join(LOG),
    }
}
