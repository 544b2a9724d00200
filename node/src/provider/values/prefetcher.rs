//! What the later parts of a lease want of the buyer, on its way while the first ones run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::ContentId;
use souk_memory::transfers::Urgency;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::clock::unix_us;
use crate::content::transfers::Tensors;
use crate::protocols::lease::{Failure, Part};
use crate::provider::values::{Came, Party, bring, held_by_buyer, holders};

/// A content of a part, and what it is.
type Wanted = (ContentId, String);

/// What comes, part by part; it comes no more when this is dropped.
pub(crate) struct Later {
    pub(crate) buyer: AccountKey,
    /// Whether the device waits for the next of them.
    awaited: Arc<AtomicBool>,
    parts: mpsc::Receiver<Result<Vec<Came>, Failure>>,
    task: JoinHandle<()>,
}

impl Drop for Later {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Later {
    /// Begins to bring what these parts want beside their graphs.
    pub(crate) fn new(
        tensors: Tensors,
        (peer, buyer): Party,
        others: &[PeerId],
        parts: &[Part],
    ) -> Later {
        let awaited = Arc::new(AtomicBool::new(false));
        let wanted = |part: &Part| -> Vec<Wanted> {
            let held = held_by_buyer(part).skip(1);
            held.map(|held| (held.id, held.what.to_owned())).collect()
        };
        let wanted: Vec<Vec<Wanted>> = parts.iter().map(wanted).collect();
        let (give, parts) = mpsc::channel(parts.len().max(1));
        let (holders, urgent) = (holders(peer, others), awaited.clone());
        let task = tokio::spawn(async move {
            for wanted in wanted {
                let came = bring_all((&tensors, &urgent), &holders, &wanted).await;
                if give.send(came).await.is_err() {
                    return;
                }
            }
        });
        Later {
            buyer,
            awaited,
            parts,
            task,
        }
    }

    /// What the next part wants, which is this one: the device waits for it from now on.
    pub(crate) async fn next(
        &mut self,
        tensors: &Tensors,
        part: &Part,
    ) -> Result<Vec<Came>, Failure> {
        self.hurry(tensors, part);
        self.came().await
    }

    /// The device waits for what the next part wants, which is this one.
    pub(crate) fn hurry(&self, tensors: &Tensors, part: &Part) {
        if self.awaited.swap(true, Ordering::SeqCst) {
            return;
        }
        for held in held_by_buyer(part) {
            tensors.hurry(&held.id);
        }
    }

    /// What the next part wants, once it is here. Who stops waiting loses nothing.
    pub(crate) async fn came(&mut self) -> Result<Vec<Came>, Failure> {
        let came = self.parts.recv().await;
        self.awaited.store(false, Ordering::SeqCst);
        let over = || Failure::Input("what a later part wants is asked for once".to_owned());
        came.ok_or_else(over)?
    }
}

/// Brings what one part wants, in its order: what is short together, then the rest one by one.
async fn bring_all(
    (tensors, awaited): (&Tensors, &AtomicBool),
    holders: &[PeerId],
    wanted: &[Wanted],
) -> Result<Vec<Came>, Failure> {
    let urgency = || match awaited.load(Ordering::SeqCst) {
        true => Urgency::Awaited,
        false => Urgency::Planned,
    };
    let ids: Vec<ContentId> = wanted.iter().map(|(id, _)| *id).collect();
    let begin = unix_us();
    let mut short = tensors.fetch_short(urgency(), holders[0], &ids).await;
    let (together, mut is_first) = ((begin, unix_us()), true);
    let mut came = Vec::with_capacity(wanted.len());
    for (id, what) in wanted {
        let mut brought = bring(tensors, (urgency(), holders), *id, what).await?;
        if let Some(fetched) = short.remove(id) {
            brought.came_with(fetched, together, std::mem::take(&mut is_first));
        }
        came.push(brought);
    }
    Ok(came)
}
