//! Decides which peers can fetch which contents from a node. A peer must be a party of a lease
//! (bought device time) that names the content. Provider and buyer call it before they serve a
//! content.
//!
//! An id identifies bytes and does not authorise a reader: ids appear in receipts, and others read
//! receipts in the log. So a peer that has proven its key asks for a content under a job, and the
//! node serves it if a lease of that job names both. If a node already holds a content, it uses it
//! for a buyer only if that buyer brought or made it there before. Otherwise an id would be enough
//! to run with another's weights, or to learn that they are here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, JobId};
use souk_memory::ContentId;

/// The most ended jobs still served: their buyers can come back for the outputs.
const OVER_MAX: usize = 4_096;

/// The most contents served in all. Beyond it, the oldest ended jobs go first.
const CONTENTS_MAX: usize = 1 << 20;

/// The most contents remembered as shown, of all accounts. An account that was forgotten must send
/// its contents again.
const SHOWN_MAX: usize = 8_192;

/// The job under which a peer asks for a content. Buyers choose the ids of their jobs: two equal
/// ids are the same job only if the buyer is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scope {
    /// The account that buys.
    pub buyer: AccountKey,
    /// The id that its leases are bought under.
    pub job: JobId,
}

/// The accounts that may fetch the same contents.
pub type Readers = Arc<BTreeSet<AccountKey>>;

/// The contents that a node serves, and to whom.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    jobs: BTreeMap<Scope, JobGrants>,
    /// The ended jobs, by the order of their ends.
    over: BTreeMap<u64, Scope>,
    ended: u64,
    contents: usize,
}

#[derive(Clone, Debug, Default)]
struct JobGrants {
    /// The number of leases at work.
    leases: u32,
    /// The order number of its last end.
    ended: Option<u64>,
    readers: BTreeMap<ContentId, Vec<Readers>>,
}

impl Grants {
    /// Notes that a lease of a job is at work here, or with another of this buyer's providers.
    pub fn begin_lease(&mut self, scope: Scope) {
        let job = self.jobs.entry(scope).or_default();
        job.leases += 1;
        if let Some(ended) = job.ended.take() {
            self.over.remove(&ended);
        }
        self.assert_bounds();
    }

    /// Grants these readers these contents from now on. Has no effect for an unknown job.
    pub fn grant_contents(
        &mut self,
        scope: Scope,
        readers: &Readers,
        contents: impl IntoIterator<Item = ContentId>,
    ) {
        let Some(job) = self.jobs.get_mut(&scope) else {
            return;
        };
        for id in contents {
            let known = job.readers.entry(id).or_default();
            self.contents += usize::from(known.is_empty());
            if !known.contains(readers) {
                known.push(readers.clone());
            }
        }
        self.assert_bounds();
    }

    /// Ends a lease of a job. You must have begun the lease, and must end it only once. Grants stay
    /// for a while, because readers fetch the outputs after the work.
    pub fn end_lease(&mut self, scope: Scope) {
        let job = self.jobs.get_mut(&scope);
        let job = job.expect("only what has begun ends");
        assert!(job.leases > 0, "each lease ends once");
        job.leases -= 1;
        if job.leases == 0 {
            job.ended = Some(self.ended);
            self.over.insert(self.ended, scope);
            self.ended += 1;
        }
        while self.over.len() > OVER_MAX || self.contents > CONTENTS_MAX {
            let Some((_, oldest)) = self.over.pop_first() else {
                break;
            };
            let gone = self.jobs.remove(&oldest);
            self.contents -= gone.map_or(0, |job| job.readers.len());
        }
        self.assert_bounds();
    }

    /// Returns whether an account may fetch a content under a job.
    #[must_use]
    pub fn may_have(&self, scope: &Scope, who: AccountKey, id: &ContentId) -> bool {
        let readers = self.jobs.get(scope).and_then(|job| job.readers.get(id));
        readers.is_some_and(|readers| readers.iter().any(|some| some.contains(&who)))
    }

    fn assert_bounds(&self) {
        assert!(self.over.len() <= OVER_MAX, "jobs that are over are few");
        assert!(self.over.len() <= self.jobs.len(), "each is known");
    }
}

/// Which accounts have shown which contents, by bringing them to this node or making them on it.
#[derive(Clone, Debug, Default)]
pub struct ShownContents {
    when: BTreeMap<(AccountKey, ContentId), u64>,
    order: BTreeMap<u64, (AccountKey, ContentId)>,
    next: u64,
}

impl ShownContents {
    /// Notes that an account has shown a content. Returns whether that is new.
    pub fn record_shown(&mut self, account: AccountKey, id: ContentId) -> bool {
        let pair = (account, id);
        let before = self.when.insert(pair, self.next);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.next, pair);
        self.next += 1;
        if self.order.len() > SHOWN_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.when.remove(&oldest);
        }
        assert_eq!(self.when.len(), self.order.len(), "each has one place");
        before.is_none()
    }

    /// Returns whether the account has shown the content.
    #[must_use]
    pub fn has_shown(&self, account: AccountKey, id: &ContentId) -> bool {
        self.when.contains_key(&(account, *id))
    }

    /// Returns all remembered pairs, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &(AccountKey, ContentId)> {
        self.order.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(n: u8) -> AccountKey {
        AccountKey([n; 32])
    }

    fn scope(buyer: u8, job: u32) -> Scope {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&job.to_be_bytes());
        let job = JobId(id);
        Scope {
            buyer: account(buyer),
            job,
        }
    }

    fn readers(of: &[u8]) -> Readers {
        Arc::new(of.iter().map(|n| account(*n)).collect())
    }

    fn content(n: u32) -> ContentId {
        ContentId::for_content(&n.to_be_bytes())
    }

    #[test]
    fn a_content_is_served_to_those_whom_a_lease_of_the_job_names() {
        let mut grants = Grants::default();
        let job = scope(1, 7);
        grants.begin_lease(job);
        grants.grant_contents(job, &readers(&[1]), [content(1)]);
        grants.grant_contents(job, &readers(&[1, 3]), [content(2)]);
        assert!(grants.may_have(&job, account(1), &content(1)));
        assert!(grants.may_have(&job, account(3), &content(2)));
        assert!(!grants.may_have(&job, account(3), &content(1)), "not named");
        assert!(!grants.may_have(&job, account(2), &content(2)), "no party");
        assert!(!grants.may_have(&job, account(1), &content(3)), "unknown");
    }

    #[test]
    fn another_buyers_job_of_the_same_id_serves_nobody() {
        let mut grants = Grants::default();
        grants.begin_lease(scope(1, 7));
        grants.grant_contents(scope(1, 7), &readers(&[1, 3]), [content(1)]);
        // A provider of both is asked to bring it for the other one.
        assert!(!grants.may_have(&scope(2, 7), account(3), &content(1)));
        grants.begin_lease(scope(2, 7));
        assert!(!grants.may_have(&scope(2, 7), account(3), &content(1)));
    }

    #[test]
    fn of_a_job_that_was_not_begun_nothing_is_granted() {
        let mut grants = Grants::default();
        grants.grant_contents(scope(1, 7), &readers(&[1]), [content(1)]);
        assert!(!grants.may_have(&scope(1, 7), account(1), &content(1)));
    }

    #[test]
    fn jobs_that_are_over_are_served_until_many_others_are() {
        let mut grants = Grants::default();
        let jobs = u32::try_from(OVER_MAX).unwrap() + 1;
        for n in 0..jobs {
            grants.begin_lease(scope(1, n));
            grants.grant_contents(scope(1, n), &readers(&[1]), [content(n)]);
            grants.end_lease(scope(1, n));
        }
        assert!(!grants.may_have(&scope(1, 0), account(1), &content(0)));
        assert!(grants.may_have(&scope(1, 1), account(1), &content(1)));
        // One that goes on is none of them.
        grants.begin_lease(scope(1, 1));
        for n in jobs..2 * jobs {
            grants.begin_lease(scope(1, n));
            grants.end_lease(scope(1, n));
        }
        assert!(grants.may_have(&scope(1, 1), account(1), &content(1)));
        assert_eq!(grants.contents, 1);
    }

    #[test]
    fn what_was_shown_longest_ago_is_forgotten_first() {
        let mut shown = ShownContents::default();
        assert!(shown.record_shown(account(1), content(0)));
        assert!(!shown.has_shown(account(2), &content(0)));
        for n in 1..u32::try_from(SHOWN_MAX).unwrap() {
            shown.record_shown(account(2), content(n));
        }
        assert!(!shown.record_shown(account(1), content(0)), "it is known");
        shown.record_shown(account(2), content(u32::MAX));
        assert!(shown.has_shown(account(1), &content(0)));
        assert!(!shown.has_shown(account(2), &content(1)));
        assert_eq!(shown.iter().count(), SHOWN_MAX);
    }
}
