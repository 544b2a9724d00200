//! Runs the task that cosigns tree heads. A tree head states the size and the root hash of the
//! market's history; if enough validators sign the same one, clients can trust it. The task passes
//! events to a core ([`souk_roles::validator::cosigning`]), carries out its effects, and publishes
//! the signed heads and the tiles (pieces of the history's tree) that this validator has.
//!
//! Cosignatures travel between validators in frames of the raft link, which removes them before
//! they reach the replica.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_consensus::wire::{Envelope, PeerMessage};
use souk_consensus::{ReplicaId, Tile, TileId, TreeTip};
use souk_folder::clock::unix_ms;
use souk_market::{MarketId, SigningKey};
use souk_proof::note::Cosigners;
use souk_roles::validator::cosigning::{
    Cosigner, CosigningEffect, CosigningEvent, CosigningReport, JournalFault, SignedHeads,
    list_cosigners,
};
use tokio::sync::{mpsc, watch};

use super::exchange_machine::ExchangeMachine;
use super::history_folder::HistoryFolder;
use super::{AnsweringMachine, Validator};

/// Notes of other validators that can wait: a few of each.
const NOTES_MAX: usize = 256;

/// The pause before a journal that could not be written is written again.
const JOURNAL_PAUSE: Duration = Duration::from_millis(500);

/// The channel by which the raft link passes on other validators' notes.
pub(super) type NoteSender = mpsc::Sender<(ReplicaId, Bytes)>;

/// Why a validator cannot cosign, and so does not start.
#[derive(Debug, thiserror::Error)]
pub enum CosigningError {
    /// The journal cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The journal or the certified head.
        path: std::path::PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
    /// The journal is damaged.
    #[error(
        "{path}, the journal of what this validator signed, is damaged: {cause}. Restore the \
         folder from a backup, or add this validator again under a new id"
    )]
    Journal {
        /// The path of the journal.
        path: std::path::PathBuf,
        /// Why it cannot be used.
        #[source]
        cause: JournalFault,
    },
}

/// The signed heads that this validator shows to clients, and the newest head with its open tiles.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownHistory {
    /// The signed heads.
    pub(super) heads: SignedHeads,
    /// The last head reached here, with the open tiles.
    tip: Option<Arc<TreeTip>>,
}

/// Reads the signed heads and the tiles, for the server of peers' requests.
#[derive(Clone, Debug)]
pub(super) struct HistoryReader {
    shown: watch::Receiver<Arc<ShownHistory>>,
    folder: HistoryFolder,
}

impl HistoryReader {
    /// Returns the signed heads.
    pub(super) fn signed_heads(&self) -> SignedHeads {
        self.shown.borrow().heads.clone()
    }

    /// Returns a tile: a full one from this validator's folder, or the beginning of one that is
    /// still open; none if this validator lacks it. It can lack tiles that are older than a
    /// snapshot which another validator sent.
    pub(super) async fn read_tile(&self, id: TileId) -> std::io::Result<Option<Tile>> {
        let folder = self.folder.clone();
        let read = tokio::task::spawn_blocking(move || folder.read_tile(id)).await;
        if let Some(tile) = read.map_err(std::io::Error::other)?? {
            return Ok(Some(tile));
        }
        let shown = self.shown.borrow().clone();
        Ok(shown.tip.as_ref().and_then(|tip| tip.open_tile(id)))
    }
}

/// Where the task learns whose cosignatures count.
enum CosignerSource {
    /// From the roster of a market's state.
    Roster(Validator<ExchangeMachine>),
    /// They never change.
    Fixed(Cosigners),
}

impl CosignerSource {
    /// Returns whose cosignatures count; none if the validator is too busy to answer.
    async fn fetch_cosigners(&self) -> Option<Cosigners> {
        match self {
            Self::Roster(validator) => {
                let roster = validator.fetch_roster().await.ok()?;
                Some(list_cosigners(&roster))
            }
            Self::Fixed(cosigners) => Some(cosigners.clone()),
        }
    }
}

/// The task that cosigns tree heads.
struct CosigningTask {
    core: Cosigner,
    source: CosignerSource,
    folder: HistoryFolder,
    tips: watch::Receiver<Option<Arc<TreeTip>>>,
    notes: mpsc::Receiver<(ReplicaId, Bytes)>,
    outbound: mpsc::Sender<Envelope>,
    shown: watch::Sender<Arc<ShownHistory>>,
}

/// Starts the task for a validator of a market. Returns the channel for other validators' notes,
/// and the reading end.
///
/// # Errors
/// If the journal cannot be read: what this validator signed is then unknown.
pub(super) fn start_cosigning(
    validator: &Validator<ExchangeMachine>,
    market: MarketId,
    me: ReplicaId,
    key: &SigningKey,
    outbound: mpsc::Sender<Envelope>,
) -> Result<(NoteSender, HistoryReader), CosigningError> {
    let source = CosignerSource::Roster(validator.clone());
    start_task(validator, source, market, me, key, outbound)
}

/// Starts the task for a validator of any state machine, in a group that never changes. Returns the
/// channel for other validators' notes.
///
/// # Errors
/// If the journal cannot be read: what this validator signed is then unknown.
pub fn start_cosigning_in_group<M: AnsweringMachine<Command: Send> + Send + 'static>(
    validator: &Validator<M>,
    cosigners: Cosigners,
    market: MarketId,
    me: ReplicaId,
    key: &SigningKey,
    outbound: mpsc::Sender<Envelope>,
) -> Result<mpsc::Sender<(ReplicaId, Bytes)>, CosigningError> {
    let source = CosignerSource::Fixed(cosigners);
    let (notes, _) = start_task(validator, source, market, me, key, outbound)?;
    Ok(notes)
}

/// Reads the journal and starts the task.
fn start_task<M: AnsweringMachine<Command: Send> + Send + 'static>(
    validator: &Validator<M>,
    source: CosignerSource,
    market: MarketId,
    me: ReplicaId,
    key: &SigningKey,
    outbound: mpsc::Sender<Envelope>,
) -> Result<(NoteSender, HistoryReader), CosigningError> {
    let folder = validator.history_folder().clone();
    let path = folder.journal_path();
    let read = |cause| CosigningError::Read {
        path: path.clone(),
        cause,
    };
    let journal = folder.read_journal().map_err(read)?;
    let certified = folder.read_checkpoint().map_err(read)?;
    let core = Cosigner::new(
        market,
        me.get(),
        key.clone(),
        journal.as_deref(),
        certified.as_deref(),
    )
    .map_err(|cause| CosigningError::Journal {
        path: path.clone(),
        cause,
    })?;
    let (notes_in, notes) = mpsc::channel(NOTES_MAX);
    let heads = core.signed_heads();
    let (shown, reader) = watch::channel(Arc::new(ShownHistory { heads, tip: None }));
    let task = CosigningTask {
        core,
        source,
        folder: folder.clone(),
        tips: validator.watch_tips(),
        notes,
        outbound,
        shown,
    };
    tokio::spawn(task.run());
    let reader = HistoryReader {
        shown: reader,
        folder,
    };
    Ok((notes_in, reader))
}

impl CosigningTask {
    /// Runs until the validator stops.
    async fn run(mut self) {
        loop {
            let went_on = tokio::select! {
                changed = self.tips.changed() => match changed {
                    Ok(()) => self.on_tip().await,
                    Err(_) => return,
                },
                note = self.notes.recv() => match note {
                    Some((from, bytes)) => {
                        let event = CosigningEvent::Heard(from.get(), &bytes);
                        let effects = self.core.apply(unix_ms() / 1_000, event);
                        self.carry_out(effects).await
                    }
                    None => return,
                },
            };
            if !went_on {
                return;
            }
            self.publish();
        }
    }

    async fn on_tip(&mut self) -> bool {
        let tip = self.tips.borrow_and_update().clone();
        let Some(tip) = tip else { return true };
        // A validator that is too busy to answer leaves this head out; the next one follows soon.
        let Some(cosigners) = self.source.fetch_cosigners().await else {
            return true;
        };
        let event = CosigningEvent::Reached(tip.head, cosigners);
        let effects = self.core.apply(unix_ms() / 1_000, event);
        self.carry_out(effects).await
    }

    /// Repeats a write until it succeeds, because the validator must not send anything before.
    /// Returns false if the validator stopped in the meantime.
    async fn write_until_done(
        &self,
        write: impl Fn() -> std::io::Result<()> + Clone + Send + 'static,
    ) -> bool {
        while let Err(error) = write_apart(write.clone()).await {
            tracing::error!(%error, "the journal can't be written: nothing is cosigned until then");
            tokio::time::sleep(JOURNAL_PAUSE).await;
            if self.tips.has_changed().is_err() {
                return false;
            }
        }
        true
    }

    /// Carries effects out in order. Returns false if the validator stopped.
    async fn carry_out(&mut self, effects: Vec<CosigningEffect>) -> bool {
        for effect in effects {
            match effect {
                CosigningEffect::Journal(note) => {
                    let folder = self.folder.clone();
                    let write = move || folder.write_journal(&note);
                    if !self.write_until_done(write).await {
                        return false;
                    }
                }
                CosigningEffect::Send(to, note) => {
                    let bytes = PeerMessage::Cosigned(note.into()).encode();
                    for to in to.into_iter().filter_map(ReplicaId::new) {
                        let bytes = bytes.clone();
                        // A full queue loses it; the next head follows soon.
                        let _full = self.outbound.try_send(Envelope { to, bytes });
                    }
                }
                CosigningEffect::StoreCertified(note) => {
                    let (folder, tip) = (self.folder.clone(), self.tips.borrow().clone());
                    let open = tip.map(|tip| tip.open_tiles_at(note.head.size));
                    let open = open.unwrap_or_default();
                    let write = move || folder.write_checkpoint(&note.encode(), &open);
                    if let Err(error) = write_apart(write).await {
                        tracing::warn!(%error, "the certified head could not be stored");
                    }
                }
                CosigningEffect::Report(report) => log_report(&report),
            }
        }
        true
    }

    fn publish(&self) {
        let shown = ShownHistory {
            heads: self.core.signed_heads(),
            tip: self.tips.borrow().clone(),
        };
        self.shown.send_replace(Arc::new(shown));
    }
}

/// Runs a write on a thread that may wait for the disk.
async fn write_apart(
    write: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    let written = tokio::task::spawn_blocking(write).await;
    written.map_err(std::io::Error::other)?
}

fn log_report(report: &CosigningReport) {
    tracing::error!(%report, "two roots of one size: see `souk market verify`");
}
