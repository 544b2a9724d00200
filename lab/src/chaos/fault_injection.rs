//! Applies a fault of the chaos test to a node, and undoes it: kills, suspends or restarts the
//! process, changes its clock or behaviour, cuts its link, or fills its disk.

use std::fs;
use std::path::PathBuf;

use souk_folder::config::{self, Fault as Behaviour, PROVIDER_FILE, ProviderFile};

use super::schedule::Fault;
use super::{ChaosError, Market};
use souk_testnet::cluster::{ControlError, LOG};
use souk_testnet::signal::Signal;

/// Lines of a log that show why its node did not start.
const LAST_LINES: usize = 5;

impl Market<'_> {
    /// Applies the fault. Leaves a node that is away alone. The caller must heal the fault before
    /// it applies another.
    pub(super) async fn apply_fault(&mut self, fault: &Fault) -> Result<(), ChaosError> {
        match fault {
            Fault::Kill { node, .. } => self.kill_node(node).await?,
            Fault::Stop { node, .. } => self.signal_node(node, Signal::Stop)?,
            Fault::Cut { node, .. } => self.set_link(node, "down")?,
            Fault::Mute { node, .. } => self.set_mute(node, true)?,
            Fault::Fill { node, .. } => self.set_disk_full(node, true)?,
            Fault::Clock { node, ahead_ms, .. } => {
                self.kill_node(node).await?;
                self.clocks.set_ahead(node, *ahead_ms)?;
                self.start_node(node, fault).await?;
            }
            Fault::Jump { node, ahead_ms, .. } => self.clocks.set_ahead(node, *ahead_ms)?,
            Fault::Lie { node, .. } => {
                self.set_behaviour(node, Some(Behaviour::Lie), fault)
                    .await?
            }
            Fault::Stall { node, .. } => {
                self.set_behaviour(node, Some(Behaviour::Stall), fault)
                    .await?
            }
        }
        Ok(())
    }

    /// Undoes the fault, and restarts every node that is away.
    pub(super) async fn heal_fault(&mut self, fault: &Fault) -> Result<(), ChaosError> {
        for node in self.cluster.reap_nodes() {
            if !is_explained(&node, fault) {
                let why = self.last_lines(&node);
                let broken = format!("{node} ended by itself after {fault:?}: {why}");
                self.broken.push(broken);
            }
        }
        match fault {
            Fault::Kill { .. } => {}
            Fault::Stop { node, .. } => self.signal_node(node, Signal::Continue)?,
            Fault::Cut { node, .. } => self.set_link(node, "up")?,
            Fault::Mute { node, .. } => self.set_mute(node, false)?,
            Fault::Fill { node, .. } => self.set_disk_full(node, false)?,
            Fault::Clock { node, .. } => {
                self.kill_node(node).await?;
                self.clocks.set_ahead(node, 0)?;
            }
            Fault::Jump { node, .. } => self.clocks.set_ahead(node, 0)?,
            Fault::Lie { node, .. } | Fault::Stall { node, .. } => {
                self.set_behaviour(node, None, fault).await?;
            }
        }
        for node in self.cluster.stopped_nodes() {
            self.start_node(&node, fault).await?;
        }
        Ok(())
    }

    /// Restarts a provider with this behaviour.
    async fn set_behaviour(
        &mut self,
        node: &str,
        how: Option<Behaviour>,
        fault: &Fault,
    ) -> Result<(), ChaosError> {
        let path: PathBuf = self.folder.join(node).join(PROVIDER_FILE);
        self.kill_node(node).await?;
        let mut file: ProviderFile = config::read(&path)?;
        file.fault = how;
        config::write(&path, &file)?;
        self.start_node(node, fault).await
    }

    /// Starts a node. If it does not start, the promise is broken, and the next heal will try
    /// again; the market continues without the node.
    async fn start_node(&mut self, node: &str, fault: &Fault) -> Result<(), ChaosError> {
        match self.cluster.restart_node(node).await {
            Ok(()) => Ok(()),
            Err(ControlError::Start(error)) => {
                let why = self.last_lines(node);
                tracing::warn!(node, %error, "a node did not start");
                let broken = format!("{node} did not start at {fault:?}: {error}: {why}");
                self.broken.push(broken);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn kill_node(&mut self, node: &str) -> Result<(), ChaosError> {
        if self.cluster.stopped_nodes().iter().all(|away| away != node) {
            self.cluster.kill_node(node).await?;
        }
        Ok(())
    }

    fn signal_node(&self, node: &str, signal: Signal) -> Result<(), ChaosError> {
        if self.cluster.stopped_nodes().iter().all(|away| away != node) {
            self.cluster.signal_node(node, signal)?;
        }
        Ok(())
    }

    /// Returns the last lines of a node's log.
    fn last_lines(&self, node: &str) -> String {
        let log = fs::read(self.folder.join(node).join(LOG)).unwrap_or_default();
        last_lines(&String::from_utf8_lossy(&log))
    }

    fn node_index(&self, node: &str) -> Option<usize> {
        self.names.iter().position(|known| known == node)
    }

    fn set_link(&self, node: &str, state: &str) -> Result<(), ChaosError> {
        match (&self.hosts, self.node_index(node)) {
            (Some(hosts), Some(place)) => Ok(hosts.set_link(place, state)?),
            _ => Ok(()),
        }
    }

    fn set_mute(&self, node: &str, mute: bool) -> Result<(), ChaosError> {
        match (&self.hosts, self.node_index(node)) {
            (Some(hosts), Some(place)) => Ok(hosts.set_mute(place, mute)?),
            _ => Ok(()),
        }
    }

    fn set_disk_full(&self, node: &str, full: bool) -> Result<(), ChaosError> {
        match &self.disks {
            Some(disks) if full => Ok(disks.fill_disk(node)?),
            Some(disks) => Ok(disks.free_disk(node)?),
            None => Ok(()),
        }
    }
}

/// Returns whether the fault explains that a node ended: its disk is full, or it refuses such a
/// clock and says so.
fn is_explained(node: &str, fault: &Fault) -> bool {
    matches!(fault, Fault::Fill { node: at, .. } | Fault::Clock { node: at, .. } if at == node)
}

fn last_lines(log: &str) -> String {
    let mut lines: Vec<&str> = log.lines().rev().take(LAST_LINES).collect();
    lines.reverse();
    lines.join(" | ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Market;
    use super::super::clocks::Clocks;
    use super::*;
    use souk_testnet::cluster::Cluster;
    use souk_testnet::process::{Node, Recipe};

    #[tokio::test]
    async fn a_node_that_does_not_start_again_is_a_promise_broken_and_tried_later() {
        let folder = tempfile::tempdir().unwrap();
        let (home, name) = (folder.path().join("provider-1"), "provider-1".to_owned());
        fs::create_dir(&home).unwrap();
        let log = home.join(LOG);
        // The script serves on its first start, and later only if it may.
        let script = "cd $0; test -e begun && ! test -e well && { echo sick >&2; exit 1; }; \
                      touch begun; echo ready; cat";
        let recipe = Recipe {
            name: name.clone(),
            binary: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), home.display().to_string()],
            log,
        };
        let mut node = Node::spawn(recipe).unwrap();
        node.wait_ready().await.unwrap();
        let mut cluster = Cluster::from_running(BTreeMap::from([(name.clone(), node)]));
        let mut market = Market {
            names: vec![name.clone()],
            folder: folder.path().to_owned(),
            hosts: None,
            disks: None,
            clocks: Clocks::new(folder.path()),
            broken: Vec::new(),
            cluster: &mut cluster,
        };
        let (node, seconds) = (name, 1);
        let fault = Fault::Kill { node, seconds };
        for broken in [1, 2] {
            market.apply_fault(&fault).await.unwrap();
            market.heal_fault(&fault).await.unwrap();
            assert_eq!(market.broken.len(), broken, "{:?}", market.broken);
            let last = market.broken.last().unwrap();
            assert!(
                last.contains("provider-1 did not start") && last.ends_with("sick"),
                "{last}"
            );
        }
        fs::write(home.join("well"), []).unwrap();
        market.heal_fault(&fault).await.unwrap();
        assert_eq!((market.broken.len(), cluster.stopped_nodes().len()), (2, 0));
        cluster.stop_all().await;
    }
}
