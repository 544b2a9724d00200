//! Follows the leases of all jobs and tabs of a buyer in the log. One task asks for all of them
//! whenever the account changed: a job or tab cannot tell whose lease a change is about, and a
//! validator answers one peer only so many questions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::select_all;
use souk_market::{AccountKey, Lease, LeaseId};
use tokio::sync::{Notify, watch};

use crate::client::broker::{AccountWatch, Broker, BrokerError};

/// The pause between two looks: changes in it are seen together. A buyer has a minute to answer a
/// note.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// The pause after a look that no validator answered.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The leases that the jobs and tabs of one buyer follow. Clones share them.
pub(super) struct LeaseFollower<L = Lease> {
    followed: Arc<Mutex<LeaseStates<L>>>,
    /// Wakes the task when a lease comes or goes.
    wake: Arc<Notify>,
}

struct LeaseStates<L> {
    states: BTreeMap<LeaseId, watch::Sender<Option<L>>>,
    has_task: bool,
    /// Whether a lease came that the task has not looked at.
    is_look_due: bool,
}

/// A lease that a job or tab follows, until this is dropped.
pub(super) struct FollowedLease<L = Lease> {
    // It is dropped before the task is woken.
    state: watch::Receiver<Option<L>>,
    _wake: WakeOnDrop,
}

/// Wakes the task when it is dropped.
struct WakeOnDrop(Arc<Notify>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl<L> Clone for LeaseFollower<L> {
    fn clone(&self) -> Self {
        LeaseFollower {
            followed: self.followed.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<L> Default for LeaseFollower<L> {
    fn default() -> Self {
        let followed = LeaseStates {
            states: BTreeMap::new(),
            has_task: false,
            is_look_due: false,
        };
        LeaseFollower {
            followed: Arc::new(Mutex::new(followed)),
            wake: Arc::default(),
        }
    }
}

impl LeaseFollower {
    /// Follows a lease of an account from now on.
    pub(super) fn follow_lease(
        &self,
        broker: &Broker,
        account: AccountKey,
        lease: LeaseId,
    ) -> FollowedLease {
        let (followed, needs_task) = self.add_lease(lease);
        if needs_task {
            let changes = broker.watch_account(account);
            let (asked, asked_one) = (broker.clone(), broker.clone());
            let fetch_open = move || {
                let broker = asked.clone();
                async move {
                    let leases = broker.fetch_leases(account).await?.into_iter();
                    Ok(leases.map(|lease| (lease.id, lease)).collect())
                }
            };
            let fetch_one = move |lease| {
                let broker = asked_one.clone();
                async move { broker.fetch_lease(lease).await }
            };
            let follower = self.clone();
            tokio::spawn(follower.run(changes, LOOK_PAUSE, fetch_open, fetch_one));
        }
        followed
    }
}

impl<L: PartialEq> LeaseFollower<L> {
    /// Adds a lease. Returns it, and whether a task must be started.
    fn add_lease(&self, lease: LeaseId) -> (FollowedLease<L>, bool) {
        let (sender, state) = watch::channel(None);
        let mut followed = self.lock_followed();
        followed.states.insert(lease, sender);
        followed.is_look_due = true;
        let needs_task = !std::mem::replace(&mut followed.has_task, true);
        self.wake.notify_one();
        let lease = FollowedLease {
            state,
            _wake: WakeOnDrop(self.wake.clone()),
        };
        (lease, needs_task)
    }

    /// Asks for the leases whenever the account changed, until no lease is followed. `fetch_open`
    /// asks for all open leases, and `fetch_one` for one that is not among them.
    async fn run<Open, One>(
        self,
        mut changes: watch::Receiver<AccountWatch>,
        pause: Duration,
        fetch_open: impl Fn() -> Open,
        fetch_one: impl Fn(LeaseId) -> One,
    ) where
        Open: Future<Output = Result<BTreeMap<LeaseId, L>, BrokerError>>,
        One: Future<Output = Result<Option<L>, BrokerError>>,
    {
        while let Some(leases) = self.list_leases() {
            let mut is_answered = true;
            if let Err(error) = self.look_at(leases, fetch_open(), &fetch_one).await {
                tracing::debug!(%error, "the followed leases are looked at again");
                is_answered = false;
            }
            tokio::time::sleep(pause).await;
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = self.wait_for_lease() => {}
                () = tokio::time::sleep(RETRY_PAUSE), if !is_answered => {}
            }
        }
    }

    /// Waits until a lease came, or the last one went.
    async fn wait_for_lease(&self) {
        loop {
            self.wake.notified().await;
            let followed = self.lock_followed();
            if followed.is_look_due || followed.states.values().all(watch::Sender::is_closed) {
                return;
            }
        }
    }

    async fn look_at<One>(
        &self,
        leases: Vec<LeaseId>,
        open: impl Future<Output = Result<BTreeMap<LeaseId, L>, BrokerError>>,
        fetch_one: impl Fn(LeaseId) -> One,
    ) -> Result<(), BrokerError>
    where
        One: Future<Output = Result<Option<L>, BrokerError>>,
    {
        let mut open = open.await?;
        for lease in leases {
            let seen = match open.remove(&lease) {
                Some(seen) => Some(seen),
                None => fetch_one(lease).await?,
            };
            let followed = self.lock_followed();
            let state = followed.states.get(&lease).zip(seen);
            if let Some((state, seen)) = state {
                state.send_if_modified(|known| {
                    let is_new = known.as_ref() != Some(&seen);
                    *known = Some(seen);
                    is_new
                });
            }
        }
        Ok(())
    }

    /// Returns the leases that are still followed; none if there are none, which ends the task.
    fn list_leases(&self) -> Option<Vec<LeaseId>> {
        let mut followed = self.lock_followed();
        followed.states.retain(|_, state| !state.is_closed());
        followed.has_task = !followed.states.is_empty();
        followed.is_look_due = false;
        followed
            .has_task
            .then(|| followed.states.keys().copied().collect())
    }

    fn lock_followed(&self) -> MutexGuard<'_, LeaseStates<L>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Clone> FollowedLease<L> {
    /// Waits until the lease changed, and returns it.
    pub(super) async fn next_change(&mut self) -> L {
        loop {
            // The task ends only after this is dropped.
            let changed = self.state.changed().await;
            let seen = self.state.borrow_and_update().clone();
            match (changed, seen) {
                (Ok(()), Some(seen)) => return seen,
                (Ok(()), None) => {}
                (Err(_), _) => std::future::pending().await,
            }
        }
    }
}

/// Waits until one of these leases changes, and returns it; waits forever if there is none.
pub(super) async fn next_change_of<L: Clone>(
    leases: &mut BTreeMap<LeaseId, FollowedLease<L>>,
) -> L {
    if leases.is_empty() {
        return std::future::pending().await;
    }
    let changes = leases
        .values_mut()
        .map(|lease| Box::pin(lease.next_change()));
    let (lease, ..) = select_all(changes).await;
    lease
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A market whose leases all have the same state, and which counts questions.
    #[derive(Default)]
    struct FakeMarket {
        state: AtomicU32,
        questions: AtomicU32,
        /// The leases from this one on are closed.
        closed_from: AtomicU32,
    }

    impl FakeMarket {
        fn ask(&self) -> u32 {
            self.questions.fetch_add(1, Ordering::Relaxed);
            self.state.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn each_change_is_one_question_for_all_tabs() {
        const TABS: u64 = 50;
        let market = Arc::new(FakeMarket::default());
        market.closed_from.store(TABS as u32, Ordering::Relaxed);
        let follower = LeaseFollower::<u32>::default();
        let tabs = (0..TABS).map(|lease| follower.add_lease(LeaseId(lease)).0);
        let mut tabs: Vec<FollowedLease<u32>> = tabs.collect();
        let (changes, receiver) = watch::channel(AccountWatch::default());
        let (open_market, one_market) = (market.clone(), market.clone());
        let open = move || {
            let state = open_market.ask();
            let open = u64::from(open_market.closed_from.load(Ordering::Relaxed));
            async move { Ok((0..open).map(|lease| (LeaseId(lease), state)).collect()) }
        };
        let one = move |_| {
            let state = one_market.ask();
            async move { Ok(Some(state)) }
        };
        let running = follower.run(receiver, Duration::ZERO, open, one);
        let task = async {
            for state in 0..=10 {
                market.state.store(state, Ordering::Relaxed);
                changes.send_modify(|watch| watch.changes += 1);
                for tab in &mut tabs {
                    assert_eq!(tab.next_change().await, state);
                }
            }
            // The tabs came while nobody asked, which is one look more at most.
            let questions = market.questions.load(Ordering::Relaxed);
            assert!((11..=13).contains(&questions), "{questions}");
            // A closed lease is asked for by itself.
            market.closed_from.store(49, Ordering::Relaxed);
            market.state.store(11, Ordering::Relaxed);
            changes.send_modify(|watch| watch.changes += 1);
            assert_eq!(tabs[49].next_change().await, 11);
            drop(tabs);
        };
        // Without a tab, the task ends.
        tokio::join!(running, task);
    }
}
