//! A validator that lies. It replaces a stopped validator, with that one's address and key; it
//! forwards each request to an honest validator and changes the answer according to the lie that it
//! tells at present.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_consensus::{Digest, TreeHead};
use souk_folder::clock::unix_ms;
use souk_folder::config::{self, KEY_FILE, VALIDATOR_FILE, ValidatorFile};
use souk_folder::contact::Contact;
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Credits, Millis};
use souk_network::protocols::market::{Answer, PROTOCOL, Request, TimedAnswer, TreeHeads};
use souk_network::{Network, NetworkConfig, wire};
use souk_node::client::history::TreeNote;

use super::{LiarsError, Lie};

/// Streams of the liar at a time.
const STREAMS_MAX: usize = 64;

/// The heads from which the liar makes its lies.
#[derive(Clone, Debug)]
pub(super) struct HonestHeads {
    /// A certified head that the liar had signed when it was honest.
    pub(super) early: TreeNote,
    /// A later one, which it has not signed.
    pub(super) late: TreeNote,
}

/// The lie that the validator tells at present.
#[derive(Clone, Copy, Debug)]
struct Tale {
    lie: Lie,
    /// Whether it shows the first version of the lie or the second: in a split view each client
    /// sees another one.
    is_first: bool,
}

/// The lying validator (see the module documentation).
pub(super) struct LyingValidator {
    raft_id: u64,
    key: NodeKey,
    network: Network,
    honest: PeerId,
    heads: HonestHeads,
    /// An account that it passes off for another.
    other_account: AccountKey,
    tale: Mutex<Tale>,
}

impl LyingValidator {
    /// Serves in the place of the stopped validator in `home`.
    pub(super) async fn start(
        home: &Path,
        honest: &Contact,
        heads: HonestHeads,
        other_account: AccountKey,
    ) -> Result<Arc<LyingValidator>, LiarsError> {
        let file: ValidatorFile = config::read(&home.join(VALIDATOR_FILE))?;
        let key = NodeKey::load(&home.join(KEY_FILE))?;
        let config = NetworkConfig {
            listen: Some(file.listen),
            ..NetworkConfig::default()
        };
        let network = Network::start(&key, config).await?;
        network.add_contact(honest).await?;
        let liar = Arc::new(LyingValidator {
            raft_id: file.raft_id.unwrap_or_default(),
            key,
            network: network.clone(),
            honest: honest.peer_id()?,
            heads,
            other_account,
            tale: Mutex::new(Tale {
                lie: Lie::OldCertificate,
                is_first: true,
            }),
        });
        let serving = liar.clone();
        network.serve_protocol(PROTOCOL, STREAMS_MAX, move |_, stream| {
            let liar = serving.clone();
            async move { liar.serve_stream(stream).await }
        });
        Ok(liar)
    }

    /// Sets what it tells from now on.
    pub(super) fn tell(&self, lie: Lie, is_first: bool) {
        *self.lock_tale() = Tale { lie, is_first };
    }

    fn lock_tale(&self) -> MutexGuard<'_, Tale> {
        // No code under this lock panics half-way through a change.
        self.tale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until the peer closes the stream, or the honest validator is silent.
    async fn serve_stream(&self, mut stream: Stream) {
        while let Ok(Some(request)) = wire::receive_or_end::<Request>(&mut stream).await {
            // This request has no answer.
            if let Request::Stale = request {
                continue;
            }
            let Some(answer) = self.answer_request(request).await else {
                return;
            };
            let told = TimedAnswer {
                time: Millis(unix_ms()),
                age: None,
                answer,
            };
            if wire::send(&mut stream, &told).await.is_err() {
                return;
            }
        }
    }

    async fn answer_request(&self, request: Request) -> Option<Answer> {
        let lies_about_balance = self.lock_tale().lie == Lie::FalseBalance;
        match request {
            Request::TreeHeads => Some(Answer::TreeHeads(Box::new(self.show_heads()))),
            Request::AccountProof(_, root) if lies_about_balance => {
                let other = Request::AccountProof(self.other_account, root);
                self.ask_honest(&other).await
            }
            request => match self.ask_honest(&request).await? {
                Answer::Account(Some(mut account)) if lies_about_balance => {
                    account.available = Credits(account.available.0.saturating_mul(1_000));
                    Some(Answer::Account(Some(account)))
                }
                answer => Some(answer),
            },
        }
    }

    async fn ask_honest(&self, request: &Request) -> Option<Answer> {
        let mut stream = self.network.open_stream(self.honest, PROTOCOL).await.ok()?;
        wire::send(&mut stream, request).await.ok()?;
        let told: TimedAnswer = wire::receive(&mut stream).await.ok()?;
        Some(told.answer)
    }

    fn show_heads(&self) -> TreeHeads {
        let Tale { lie, is_first } = *self.lock_tale();
        let HonestHeads { early, late } = &self.heads;
        let mine = || self.sign(late.clone());
        let signed = |head: TreeHead| self.sign(TreeNote::new(late.market, head));
        let (root, state) = (other_root(late.head), other_state(late.head));
        let (latest, certified) = match (lie, is_first) {
            (Lie::TwoRoots, _) => (signed(root), mine()),
            (Lie::TwoStates, _) => (signed(state), mine()),
            (Lie::SplitView, true) | (Lie::FalseBalance, _) => (mine(), mine()),
            (Lie::SplitView, false) => (signed(root), early.clone()),
            (Lie::WrongRoot, _) => (signed(root), late.clone()),
            (Lie::WrongState, _) => (signed(state), late.clone()),
            (Lie::OtherHistory, _) => {
                let shorter = TreeHead {
                    size: late.head.size - 1,
                    ..root
                };
                (signed(shorter), late.clone())
            }
            (Lie::ForgedCertificate, _) => {
                let mut forged = TreeNote::new(late.market, root);
                forged.cosignatures.clone_from(&late.cosignatures);
                (early.clone(), forged)
            }
            (Lie::OldCertificate, _) => (early.clone(), early.clone()),
        };
        TreeHeads {
            latest: Some(latest.encode()),
            certified: Some(certified.encode()),
            conflicts: Vec::new(),
        }
    }

    /// Adds the liar's own, valid signature.
    fn sign(&self, mut note: TreeNote) -> TreeNote {
        let signature = note.cosign(self.raft_id, unix_ms() / 1_000, self.key.signing_key());
        note.insert(signature);
        note
    }
}

/// Returns the head of a history in which a command is missing or other.
fn other_root(head: TreeHead) -> TreeHead {
    let root = Digest::for_content(&head.root.0);
    TreeHead { root, ..head }
}

/// Returns the head of the same history with other balances.
fn other_state(head: TreeHead) -> TreeHead {
    let state = head.state.map(|state| Digest::for_content(&state.0));
    TreeHead { state, ..head }
}
