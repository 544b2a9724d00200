//! Changes the members of a validators' group. Through a [`Validator`], the caller adds a member
//! (which first only receives the log and then votes), removes one for good, or transfers
//! leadership to another.

use std::time::Duration;

use souk_consensus::ReplicaId;
use souk_consensus::replica::{ChangeError, MemberChange, Status};
use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::oneshot;

use super::task::Input;
use super::{QueryError, Validator};

/// How often a change in progress is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why the members were not changed.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// The replica refuses the change.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The validator does not answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The change takes too long; it may still take effect.
    #[error("the change was proposed but is not done after {0:?}: check again later")]
    Timeout(Duration),
}

impl<M: AnsweringMachine<Command: Send> + Send + 'static> Validator<M> {
    /// Adds a validator that was begun with `Join`: as a learner first, then, once it has caught
    /// up, as a voter. You must call this on the leader.
    ///
    /// # Errors
    /// If the validator cannot be added. After a timeout it may be a learner; another call
    /// continues from there.
    pub async fn add_member(&self, id: ReplicaId) -> Result<(), MembersError> {
        let is = |list: &[u64]| list.contains(&id.get());
        if !is(self.status().await?.members.get_learners()) {
            self.change_members(vec![MemberChange::AddLearner(id)])
                .await?;
            self.wait_for_status(|status| is(status.members.get_learners()))
                .await?;
        }
        let caught_up = |status: &Status| {
            let peer = status.peers.iter().find(|peer| peer.id == id);
            peer.is_some_and(|peer| peer.reached >= status.commit)
        };
        self.wait_for_status(caught_up).await?;
        self.change_members(vec![MemberChange::Promote(id)]).await?;
        self.wait_for_status(|status| is(status.members.get_voters()))
            .await
    }

    /// Removes a validator for good: its id is never used again. You must call this on the leader.
    ///
    /// # Errors
    /// If the validator cannot be removed.
    pub async fn remove_member(&self, id: ReplicaId) -> Result<(), MembersError> {
        self.change_members(vec![MemberChange::Remove(id)]).await?;
        let gone = |status: &Status| {
            let members = &status.members;
            let lists = [members.get_voters(), members.get_learners()];
            lists.iter().all(|list| !list.contains(&id.get()))
        };
        self.wait_for_status(gone).await
    }

    /// Transfers leadership to another voter.
    ///
    /// # Errors
    /// If the other voter did not become leader in time.
    pub async fn transfer_leadership(&self, to: ReplicaId) -> Result<(), MembersError> {
        self.send_input(Input::Transfer { to })?;
        self.wait_for_status(|status| status.leader == Some(to))
            .await
    }

    /// Proposes a change of members, which has taken effect once the status shows it.
    ///
    /// # Errors
    /// If the change cannot be made now, or ever.
    pub async fn change_members(&self, changes: Vec<MemberChange>) -> Result<(), MembersError> {
        let (reply, answer) = oneshot::channel();
        self.send_input(Input::Members { changes, reply })?;
        Ok(answer.await.map_err(|_| QueryError::Stopped)??)
    }

    async fn wait_for_status(&self, done: impl Fn(&Status) -> bool) -> Result<(), MembersError> {
        let looked = async {
            while !done(&self.status().await?) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        let ended = tokio::time::timeout(self.patience, looked).await;
        ended.map_err(|_| MembersError::Timeout(self.patience))?
    }
}
