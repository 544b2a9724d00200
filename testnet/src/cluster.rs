//! The nodes of a testnet as processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::layout;
use crate::process::{Node, Recipe, StartError};
use crate::signal::{self, Signal};

/// The file of a node's folder that its standard error is appended to.
pub const LOG: &str = "log.txt";

/// Running nodes by name.
#[derive(Debug)]
pub struct Cluster {
    running: BTreeMap<String, Node>,
    stopped: BTreeMap<String, Recipe>,
}

/// Why a node was not killed or started.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such node.
    #[error("there is no node {name} in this testnet: it has {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system sent it no signal.
    #[error("no signal was sent to {name}: {cause}")]
    Signal {
        /// The node.
        name: String,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl Cluster {
    #[cfg(test)]
    pub(crate) fn of(running: BTreeMap<String, Node>) -> Cluster {
        Cluster {
            running,
            stopped: BTreeMap::new(),
        }
    }

    /// Starts every node laid out in `folder`: all at once, since validators wait for each other
    /// and providers for validators. They serve once [`Cluster::ready`] has returned.
    ///
    /// # Errors
    /// When the system does not start one; those it did start are ended.
    pub fn spawn(binary: &Path, folder: &Path) -> Result<Cluster, StartError> {
        Cluster::spawn_behind(binary, folder, |_| Vec::new())
    }

    /// Starts every node by a command that its name gives, such as one that enters a network
    /// namespace, followed by the node's own; with an empty one it is started as it is.
    ///
    /// # Errors
    /// As for [`Cluster::spawn`].
    pub fn spawn_behind(
        binary: &Path,
        folder: &Path,
        before: impl Fn(&str) -> Vec<String>,
    ) -> Result<Cluster, StartError> {
        let recipes = layout::nodes(folder).into_iter().map(|name| {
            let before = before(&name);
            recipe(binary, folder, name).behind(before)
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
    /// The first that does not, at once: others may wait for it. They go on.
    pub async fn ready(&mut self) -> Result<(), StartError> {
        let all = self.running.values_mut().map(Node::ready);
        futures::future::try_join_all(all).await.map(drop)
    }

    /// Starts one more, and waits until it serves.
    ///
    /// # Errors
    /// When it does not.
    pub async fn add(&mut self, recipe: Recipe) -> Result<(), StartError> {
        let mut node = Node::spawn(recipe)?;
        node.ready().await?;
        self.running.insert(node.recipe().name.clone(), node);
        Ok(())
    }

    /// Names of the nodes that run, with their process ids.
    pub fn running(&self) -> impl Iterator<Item = (&str, Option<u32>)> {
        self.running
            .iter()
            .map(|(name, node)| (name.as_str(), node.process_id()))
    }

    /// Ends a node at once, as a power cut would.
    pub async fn kill(&mut self, name: &str) -> Result<(), ControlError> {
        let node = self
            .running
            .remove(name)
            .ok_or_else(|| self.unknown(name))?;
        let recipe = node.kill().await;
        self.stopped.insert(name.to_owned(), recipe);
        Ok(())
    }

    /// Starts a node that was killed or has ended.
    ///
    /// # Errors
    /// When there is no such node, or it does not start.
    pub async fn restart(&mut self, name: &str) -> Result<(), ControlError> {
        let recipe = self
            .stopped
            .get(name)
            .cloned()
            .ok_or_else(|| self.unknown(name))?;
        let mut node = Node::spawn(recipe)?;
        node.ready().await?;
        self.stopped.remove(name);
        self.running.insert(name.to_owned(), node);
        Ok(())
    }

    /// Stops a node without ending it, or lets it go on.
    ///
    /// # Errors
    /// When no such node runs, or the system refuses.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<(), ControlError> {
        let node = self.running.get(name).ok_or_else(|| self.unknown(name))?;
        let process = node.process_id().ok_or_else(|| self.unknown(name))?;
        signal::send(process, signal).map_err(|cause| ControlError::Signal {
            name: name.to_owned(),
            cause,
        })
    }

    /// Names of the nodes that ended by themselves since the last call.
    pub fn reap(&mut self) -> Vec<String> {
        let ended = |(name, node): (&String, &mut Node)| node.ended().map(|_| name.clone());
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

    /// Names of the nodes that were killed or have ended.
    pub fn away(&self) -> Vec<String> {
        self.stopped.keys().cloned().collect()
    }

    /// Stops every node: validators last, so that the others can withdraw their asks.
    pub async fn stop(self) {
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

    fn unknown(&self, name: &str) -> ControlError {
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

fn recipe(binary: &Path, folder: &Path, name: String) -> Recipe {
    let home = folder.join(&name);
    let role = if name.starts_with("validator") {
        "validator"
    } else {
        "provider"
    };
    let dir = home.to_string_lossy();
    let mut arguments = vec!["--dir", &dir, role, "run", "--until-stdin-closes"];
    if role == "provider" {
        // A testnet that stops takes its jobs with it.
        arguments.extend(["--drain", "0"]);
    }
    Recipe {
        name,
        binary: PathBuf::from(binary),
        arguments: arguments.into_iter().map(str::to_owned).collect(),
        log: home.join(LOG),
    }
}
