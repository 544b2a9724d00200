//! Serves peers' requests to a validator: it answers questions about the replicated exchange, and
//! proposes their commands for the log.
//!
//! Whichever validator a peer asks, reads are linearizable: the answer holds everything that was
//! acknowledged anywhere before the question. A peer can instead ask for a stale answer, which
//! states its age: this shows a market that has lost its quorum.

mod announcements;
mod members;
mod question_counts;
mod sharing;
mod submissions;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_consensus::TileId;
use souk_folder::clock::unix_ms;
use souk_folder::contact::{self, Contact};
use souk_folder::key;
use souk_market::{AccountKey, Genesis, LeaseId, Millis};
use souk_network::profile::Profile;
use souk_network::protocols::market::{
    Age, Answer, BACKUP_FRAME_BYTES, PROTOCOL, REQUEST_BYTES_MAX, Request, Status, TimedAnswer,
    TreeHeads,
};
use souk_network::protocols::roster::SignedMembershipOrder;
use souk_network::wire::{self, Intake, WireError};
use souk_network::{Network, RateLimit};
use souk_proof::note::TreeNote;
use souk_roles::market::statement::LogPlace;
use souk_roles::validator::questions::{Question, Reply};

use crate::validator::account_watchers::AccountWatchers;
use crate::validator::cosigning::HistoryReader;
use crate::validator::exchange_machine::ExchangeMachine;
use crate::validator::statements::Statements;
use crate::validator::{Consistency, QueryError, ReadMoment, Validator};
use announcements::Announcements;
pub(super) use question_counts::QuestionCounts;
use sharing::SharedQuestions;
use submissions::RegistrationLimits;

/// Streams served at a time, watches included: a few for each of a few hundred peers.
const STREAMS_MAX: usize = 1024;

/// The validator closes a stream without requests after this time.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The questions about one account ([`Request::cost`]) that one peer can ask in a burst, and per
/// second after that, on all its streams together: a buyer asks some forty per job. A peer that
/// asks more must wait for the answer.
const ASKED_BURST: u32 = 4_096;
const ASKED_PER_SECOND: u32 = 2_048;

/// The state that all streams of the server share.
struct SharedState {
    network: Network,
    validator: Validator<ExchangeMachine>,
    genesis: Box<Genesis>,
    context: ServerContext,
    announcements: Mutex<Announcements>,
    sharing: SharedQuestions<(Option<Age>, Arc<[u8]>)>,
    intake: Intake,
    rate_limit: RateLimit,
    registrations: RegistrationLimits,
}

/// The state that a validator's server shares with the validator's other parts.
pub(super) struct ServerContext {
    /// The streams that watch accounts.
    pub(super) watchers: AccountWatchers,
    /// The counts of questions.
    pub(super) questions: QuestionCounts,
    /// The history of accounts.
    pub(super) statements: Statements,
    /// The signed heads and the tiles of the history's tree.
    pub(super) history: HistoryReader,
}

/// Serves `/souk/market/14` until the network stops.
pub(super) fn serve_market(
    network: &Network,
    validator: Validator<ExchangeMachine>,
    genesis: &Genesis,
    context: ServerContext,
) {
    let shared = Arc::new(SharedState {
        network: network.clone(),
        validator,
        genesis: Box::new(genesis.clone()),
        context,
        announcements: Mutex::default(),
        sharing: SharedQuestions::default(),
        intake: Intake::new(REQUEST_BYTES_MAX, IDLE_MAX),
        rate_limit: RateLimit::new(ASKED_BURST, ASKED_PER_SECOND),
        registrations: RegistrationLimits::default(),
    });
    network.serve_protocol(PROTOCOL, STREAMS_MAX, move |peer, stream| {
        let shared = shared.clone();
        async move {
            let ended = shared.serve_stream(peer, stream).await;
            if let Err(error) = &ended {
                tracing::debug!(%peer, %error, "a market stream ended early");
            }
            ended
        }
    });
}

impl SharedState {
    async fn serve_stream(&self, peer: PeerId, mut stream: Stream) -> Result<(), WireError> {
        let mut consistency = Consistency::Linearizable;
        while let Some(request) = self.intake.receive_next::<Request>(&mut stream).await? {
            self.rate_limit.wait_for_tokens(peer, request.cost()).await;
            self.context.questions.count_question(&request);
            if let Some(excess) = request.excess_reason() {
                wire::send(&mut stream, &stamp_answer(None, Answer::Invalid(excess))).await?;
                continue;
            }
            if let Request::Stale = request {
                consistency = Consistency::Stale;
                continue;
            }
            if let Request::Watch(account) = request {
                return self.tell_changes(account, &mut stream).await;
            }
            if let Request::Backup(order) = request {
                return self.send_backup(&order, &mut stream).await;
            }
            if request.is_common()
                && let Some(answer) = self.share_answer(&request, consistency).await?
            {
                wire::send_bytes(&mut stream, &answer).await?;
                continue;
            }
            let (age, answer) = self.answer_request(peer, request, consistency).await;
            wire::send(&mut stream, &stamp_answer(age, answer)).await?;
        }
        Ok(())
    }

    async fn tell_changes(&self, key: AccountKey, stream: &mut Stream) -> Result<(), WireError> {
        let mut watcher = self.context.watchers.watch_account(key);
        loop {
            wire::send(stream, &Answer::Changed).await?;
            watcher.wait_for_change().await;
        }
    }

    async fn send_backup(
        &self,
        order: &SignedMembershipOrder,
        stream: &mut Stream,
    ) -> Result<(), WireError> {
        if !self.admits_backup(order, unix_ms()).await {
            let refused = "only the operator or this validator's own key gets a backup of it";
            return wire::send(stream, &Answer::Invalid(refused.to_owned())).await;
        }
        let Ok((_, bytes)) = self.validator.create_backup().await else {
            return wire::send(stream, &unavailable_answer()).await;
        };
        let length = bytes.len() as u64;
        wire::send(stream, &Answer::Backup { bytes: length }).await?;
        for frame in bytes.chunks(BACKUP_FRAME_BYTES) {
            wire::send_bytes(stream, frame).await?;
        }
        Ok(())
    }

    /// Returns the answer, with its age if the peer asked for a stale one.
    async fn answer_request(
        &self,
        peer: PeerId,
        request: Request,
        consistency: Consistency,
    ) -> (Option<Age>, Answer) {
        let answer = match request {
            Request::Submit(batch) => self.submit_batch(peer, batch).await,
            Request::Time => Answer::Done,
            Request::Genesis => Answer::Genesis(self.genesis.clone()),
            Request::Announce(addresses) => self.record_announcement(peer, &addresses),
            Request::Find(accounts) => self.find_contacts(&accounts).await,
            Request::Status => self.read_status().await,
            Request::Members => self.list_members().await,
            Request::Order(order) => self.execute_order(order).await,
            Request::TreeHeads => self.show_heads(),
            Request::Tile { level, index } => self.read_tile(TileId { level, index }).await,
            Request::Settlement(lease) => self.read_settlement(lease).await,
            // It is of a state that never changes, so no leader need confirm it.
            Request::AccountProof(..) => read(&self.validator, request, Consistency::Stale).await.1,
            Request::Statement(account, before) => self.read_statement(account, before).await,
            // `serve_stream` serves these, so they never come here.
            Request::Watch(_) | Request::Backup(_) | Request::Stale => Answer::Changed,
            question => return read(&self.validator, question, consistency).await,
        };
        (None, answer)
    }

    /// Returns the answer to a question that many ask alike, as an encoded [`TimedAnswer`]: it is
    /// computed once for all who wait for it.
    async fn share_answer(
        &self,
        request: &Request,
        consistency: Consistency,
    ) -> Result<Option<Vec<u8>>, WireError> {
        let question = postcard::to_allocvec(&(consistency == Consistency::Stale, request))?;
        let (validator, request) = (self.validator.clone(), request.clone());
        let put = async move {
            let (age, answer) = read(&validator, request, consistency).await;
            let bytes = postcard::to_allocvec(&answer);
            (
                age,
                bytes.expect("plain data in memory always encodes").into(),
            )
        };
        let Some((age, answer)) = self.sharing.ask_shared(question, put).await else {
            return Ok(None);
        };
        let mut bytes = postcard::to_allocvec(&(Millis(unix_ms()), age))?;
        bytes.extend_from_slice(&answer);
        Ok(Some(bytes))
    }

    async fn read_statement(&self, account: AccountKey, before: Option<LogPlace>) -> Answer {
        // After this query, this validator has applied everything acknowledged before.
        let seen = self
            .validator
            .query_machine(Consistency::Linearizable, Question::Sums);
        if let Err(error) = seen.await {
            return Answer::Unavailable(error.to_string());
        }
        let statements = self.context.statements.clone();
        let read = tokio::task::spawn_blocking(move || statements.read(account, before));
        match read.await {
            Ok(Ok(statement)) => Answer::Statement(statement),
            Ok(Err(error)) => Answer::Unavailable(format!("the statements: {error}")),
            Err(_) => unavailable_answer(),
        }
    }

    fn show_heads(&self) -> Answer {
        let heads = self.context.history.signed_heads();
        let text = |note: TreeNote| note.encode();
        Answer::TreeHeads(Box::new(TreeHeads {
            latest: heads.latest.map(text),
            certified: heads.certified.map(text),
            conflicts: heads.conflicts.into_iter().map(text).collect(),
        }))
    }

    async fn read_tile(&self, id: TileId) -> Answer {
        match self.context.history.read_tile(id).await {
            Ok(tile) => Answer::Tile(tile.map(|tile| tile.encode())),
            Err(error) => Answer::Unavailable(format!("the history: {error}")),
        }
    }

    async fn read_settlement(&self, lease: LeaseId) -> Answer {
        let settlements = self.validator.settlements().clone();
        let read = tokio::task::spawn_blocking(move || settlements.read_record(lease));
        match read.await {
            Ok(Ok(record)) => Answer::Settlement(record.map(Box::new)),
            Ok(Err(error)) => Answer::Unavailable(format!("the settlements: {error}")),
            Err(_) => unavailable_answer(),
        }
    }

    async fn read_status(&self) -> Answer {
        let state = self
            .validator
            .query_machine(Consistency::Stale, Question::Digest);
        match (state.await, self.validator.status().await) {
            (Ok((Reply::Digest(market, digest), seen)), Ok(standing)) => Answer::Status(Status {
                market,
                raft_id: standing.id.get(),
                role: format!("{:?}", standing.role).to_lowercase(),
                leader: standing.leader.map_or(0, |leader| leader.get()),
                term: standing.term.0,
                committed: standing.commit.0,
                applied: seen.applied.0,
                digest: hex::encode(digest.0),
            }),
            _ => unavailable_answer(),
        }
    }

    fn record_announcement(&self, peer: PeerId, addresses: &[String]) -> Answer {
        let Some(account) = key::account_of(&peer) else {
            return Answer::Unavailable("only ed25519 peers have an account".to_owned());
        };
        let understood = contact::parse_addresses(addresses);
        self.lock_announcements()
            .insert_addresses(AccountKey(account), understood, |account| {
                self.context.watchers.is_watched(account)
            });
        Answer::Done
    }

    /// Finds peers that announced themselves here, and those known by gossip.
    async fn find_contacts(&self, accounts: &[AccountKey]) -> Answer {
        let mut found: Vec<Contact> = {
            let announced = self.lock_announcements();
            let contact = |account| announced.contact(account);
            accounts.iter().filter_map(contact).collect()
        };
        if found.len() < accounts.len() {
            let known: BTreeSet<[u8; 32]> = found.iter().map(|contact| contact.account).collect();
            let unknown = accounts
                .iter()
                .filter(|account| !known.contains(&account.0));
            let unknown: BTreeSet<AccountKey> = unknown.copied().collect();
            let heard = self.network.provider_profiles().await;
            let heard = heard
                .iter()
                .filter(|profile| unknown.contains(&profile.account));
            found.extend(heard.map(Profile::to_contact));
        }
        Answer::Found(found.iter().map(Into::into).collect())
    }

    fn lock_announcements(&self) -> MutexGuard<'_, Announcements> {
        // No code under this lock panics half-way through a change.
        self.announcements
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queries the state.
async fn read(
    validator: &Validator<ExchangeMachine>,
    request: Request,
    consistency: Consistency,
) -> (Option<Age>, Answer) {
    let question = Question::Market(Box::new(request));
    match validator.query_machine(consistency, question).await {
        Ok((Reply::Market(answer), seen)) => {
            let age = (consistency == Consistency::Stale).then(|| age_of(seen));
            (age, *answer)
        }
        Ok(_) => unreachable!("the market was asked"),
        Err(QueryError::Busy { retry_after_ms }) => (None, Answer::Busy { retry_after_ms }),
        Err(error) => (None, Answer::Unavailable(error.to_string())),
    }
}

fn age_of(seen: ReadMoment) -> Age {
    Age {
        age_ms: seen.age_ms,
        applied: seen.applied.0,
        time_ms: seen.time.0,
    }
}

/// Returns an answer with this validator's clock; a client trusts the median of such clocks.
fn stamp_answer(age: Option<Age>, answer: Answer) -> TimedAnswer {
    let time = Millis(unix_ms());
    TimedAnswer { time, age, answer }
}

fn unavailable_answer() -> Answer {
    Answer::Unavailable("the validator is shutting down".to_owned())
}
