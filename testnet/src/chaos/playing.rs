//! How each fault is done to a node, and undone.

use std::path::PathBuf;

use rustix::process::Signal;
use souk_node::config::{self, Fault as Behaviour, PROVIDER_FILE, ProviderFile};

use super::schedule::Fault;
use super::{ChaosError, Market};

impl Market<'_> {
    /// Does it.
    pub(super) async fn apply(&mut self, fault: &Fault) -> Result<(), ChaosError> {
        match fault {
            Fault::Kill { node, .. } => self.cluster.kill(node).await?,
            Fault::Stop { node, .. } => self.cluster.signal(node, Signal::STOP)?,
            Fault::Cut { node, .. } => self.link(node, "down")?,
            Fault::Mute { node, .. } => self.mute(node, true)?,
            Fault::Fill { node, .. } => self.fill(node, true)?,
            Fault::Clock { node, ahead_ms, .. } => {
                self.cluster.kill(node).await?;
                self.clocks.set(node, *ahead_ms)?;
                self.cluster.restart(node).await?;
            }
            Fault::Jump { node, ahead_ms, .. } => self.clocks.set(node, *ahead_ms)?,
            Fault::Lie { node, .. } => self.behave(node, Some(Behaviour::Lie)).await?,
            Fault::Stall { node, .. } => self.behave(node, Some(Behaviour::Stall)).await?,
        }
        Ok(())
    }

    /// Undoes it. Who ended by itself is started again; where the fault does not explain that, it
    /// is remembered.
    pub(super) async fn heal(&mut self, fault: &Fault) -> Result<(), ChaosError> {
        match fault {
            Fault::Kill { node, .. } => self.cluster.restart(node).await?,
            Fault::Stop { node, .. } => self.cluster.signal(node, Signal::CONT)?,
            Fault::Cut { node, .. } => self.link(node, "up")?,
            Fault::Mute { node, .. } => self.mute(node, false)?,
            Fault::Fill { node, .. } => self.fill(node, false)?,
            Fault::Clock { node, .. } => {
                // One that would not run under such a clock has ended.
                if !self.cluster.reap().contains(node) {
                    self.cluster.kill(node).await?;
                }
                self.clocks.set(node, 0)?;
                self.cluster.restart(node).await?;
            }
            Fault::Jump { node, .. } => self.clocks.set(node, 0)?,
            Fault::Lie { node, .. } | Fault::Stall { node, .. } => self.behave(node, None).await?,
        }
        for node in self.cluster.reap() {
            let explained = matches!(fault, Fault::Fill { node: full, .. } if *full == node);
            if !explained {
                self.ended
                    .push(format!("{node} ended by itself after {fault:?}"));
            }
            self.cluster.restart(&node).await?;
        }
        Ok(())
    }

    /// Starts a provider again that behaves so from now on.
    async fn behave(&mut self, node: &str, how: Option<Behaviour>) -> Result<(), ChaosError> {
        let path: PathBuf = self.folder.join(node).join(PROVIDER_FILE);
        self.cluster.kill(node).await?;
        let mut file: ProviderFile = config::read(&path)?;
        file.fault = how;
        config::write(&path, &file)?;
        Ok(self.cluster.restart(node).await?)
    }

    fn place(&self, node: &str) -> Option<usize> {
        self.names.iter().position(|known| known == node)
    }

    fn link(&self, node: &str, state: &str) -> Result<(), ChaosError> {
        match (&self.hosts, self.place(node)) {
            (Some(hosts), Some(place)) => Ok(hosts.link(place, state)?),
            _ => Ok(()),
        }
    }

    fn mute(&self, node: &str, mute: bool) -> Result<(), ChaosError> {
        match (&self.hosts, self.place(node)) {
            (Some(hosts), Some(place)) => Ok(hosts.mute(place, mute)?),
            _ => Ok(()),
        }
    }

    fn fill(&self, node: &str, full: bool) -> Result<(), ChaosError> {
        match &self.disks {
            Some(disks) if full => Ok(disks.fill(node)?),
            Some(disks) => Ok(disks.empty(node)?),
            None => Ok(()),
        }
    }
}
