//! Carries out the effects of tabs at a provider, and sends the text of answers to buyers while the
//! engine generates it. A tab is a lease of an endpoint (a provider that sells the answers of a
//! language model); each of its runs is one request.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use libp2p::PeerId;
use libp2p::swarm::Stream;
use souk_market::{AccountKey, DeviceMicros, TokenTerms};
use souk_memory::{ContentId, Tensor};
use souk_roles::lease::{Failure, Part, TAB_ANSWER, TAB_REQUEST};
use souk_roles::provider::FailedRun;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::text::{Finish, TextAnswer, TextRequest};
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use tokio::time::timeout;

use super::effects::store_outputs;
use super::outcomes::{EffectOutcome, FinishedRun};
use super::*;
use crate::endpoint::Endpoint;
use crate::endpoint::pieces::{FOLLOWER_BYTES_MAX, FollowerMessage, PieceSink};
use crate::provider::OPENING_TIMEOUT;
use futures::AsyncReadExt;
use souk_folder::key;
use souk_network::wire::{self, WireError};

impl Shell {
    /// Begins an action: as an endpoint does it, if the provider is one, else as for any lease.
    pub(super) fn begin_action(&mut self, ticket: Ticket, action: Action) {
        let provider = self.provider.clone();
        let rest = match provider.engine.as_endpoint() {
            Some(endpoint) => self.begin_tab_action(ticket, endpoint, action),
            None => Some(action),
        };
        if let Some(action) = rest {
            self.begin_lease_action(ticket, action);
        }
    }

    /// Begins an action of a tab. Returns the action if an endpoint does it like any other
    /// provider.
    fn begin_tab_action(
        &mut self,
        ticket: Ticket,
        endpoint: &Arc<Endpoint>,
        action: Action,
    ) -> Option<Action> {
        match action {
            // No check is left: the core accepts only tabs of this endpoint's model.
            Action::Check { .. } => self.queue_answer(ticket, Answer::Checked(Ok(()))),
            Action::Sandbox { .. } => self.queue_answer(ticket, Answer::Sandboxed { slots: 1 }),
            Action::Prepare { lease, .. } => {
                if let Some(running) = self.leases.get_mut(&lease) {
                    running.on_ready();
                }
                self.queue_answer(ticket, Answer::Prepared(Ok(())));
            }
            Action::Run {
                lease,
                request,
                work,
                inputs,
                bytes_max,
                deadline,
                tokens,
                time_left,
                ..
            } => {
                let label = self.provider.label.clone();
                let running = self.leases.get_mut(&lease).expect("it was learned");
                running.on_run_begin(&label, request);
                let tariff = TabRun {
                    terms: tokens.unwrap_or(TokenTerms::USUAL),
                    time_left,
                    prompts: running.prompts.clone(),
                };
                let sink = self.provider.pieces.open_sink(lease, request);
                let left = self.clock.until_log(deadline);
                let (provider, endpoint) = (self.provider.clone(), endpoint.clone());
                self.effects.start(ticket, async move {
                    let request = provider.read_request(inputs).await;
                    let ran = match request {
                        Ok(asked) => {
                            let answer = tariff.answer(&endpoint, &asked, left, &sink);
                            let (answer, count) = answer.await;
                            let ran =
                                tariff.finish_run(&provider, &answer, count, *work, bytes_max);
                            ran.map_err(FailedRun::from)
                        }
                        Err(failure) => Err(failure.into()),
                    };
                    EffectOutcome::Ran {
                        lease,
                        ran: Box::new(ran),
                    }
                });
            }
            other => return Some(other),
        }
        None
    }
}

/// The prices, the remaining device time and the earlier prompts by which a tab's requests are
/// counted and billed.
struct TabRun {
    terms: TokenTerms,
    /// The device time that the lease has left.
    time_left: DeviceMicros,
    prompts: Arc<Mutex<PromptHistory>>,
}

impl TabRun {
    /// Answers one request, and counts its tokens. A tab answers its requests one after the other,
    /// so nothing else changes the history of prompts at the same time.
    async fn answer(
        &self,
        endpoint: &Endpoint,
        asked: &TextRequest,
        left: Duration,
        sink: &PieceSink,
    ) -> (TextAnswer, TokenCount) {
        let lock = || self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        let prompt = lock().count_prompt(asked);
        if let Some(refused) = self.refuse_too_costly(asked, prompt) {
            return (refused, TokenCount::default());
        }
        let answer = endpoint.answer_request(asked, prompt, left, sink).await;
        let count = answer.count_for(asked, prompt);
        lock().on_counted(asked, count);
        (answer, count)
    }

    /// Refuses a request that can cost more device time than its lease has left, because a lease
    /// pays no more: returns an answer without text, so that the buyer tries another tab.
    fn refuse_too_costly(&self, asked: &TextRequest, prompt: TokenCount) -> Option<TextAnswer> {
        let most = asked.count_max_after(prompt).device_time(self.terms);
        (most > self.time_left).then(|| {
            let left = self.time_left;
            let why = format!("the request can cost {most}, and the tab has {left} left");
            TextAnswer::without_text(Finish::Busy, why)
        })
    }

    /// Stores an answer as the output of its run, which took the device time of its tokens.
    fn finish_run(
        &self,
        provider: &Provider,
        answer: &TextAnswer,
        count: TokenCount,
        work: Part,
        bytes_max: u64,
    ) -> Result<FinishedRun, Failure> {
        let bytes = answer.to_bytes();
        let tensor = Tensor::from_vec(vec![bytes.len()], bytes);
        let tensor = tensor.map_err(|error| Failure::Run(error.to_string()))?;
        let made = BTreeMap::from([(TAB_ANSWER.to_owned(), tensor)]);
        let (outputs, bytes) = store_outputs(provider, &work, true, made, bytes_max)?;
        Ok(FinishedRun {
            work: Box::new(work),
            promised: None,
            takes: None,
            outputs,
            bytes,
            busy: Duration::from_micros(count.device_time(self.terms).0),
            tokens: Some(count),
            report: Report::default(),
            timeline: Timeline::default(),
        })
    }
}

impl Provider {
    /// Reads the request that a tab's run is for.
    async fn read_request(
        self: &Arc<Self>,
        inputs: Vec<(String, ContentId)>,
    ) -> Result<TextRequest, Failure> {
        let inputs = self.read_inputs(inputs).await?;
        let bytes: Option<&Bytes> = inputs.get(TAB_REQUEST).map(Tensor::bytes);
        let read = bytes.and_then(|bytes| TextRequest::read(bytes));
        read.ok_or_else(|| Failure::Input("it is not a request for a tab".to_owned()))
    }

    /// Serves the stream on which a buyer follows its tab, until the tab or the stream ends: sends
    /// the text of the answers while the engine generates it, and stops a request if the buyer asks
    /// for that.
    pub(in crate::provider) async fn serve_follower(
        self: Arc<Self>,
        peer: PeerId,
        mut stream: Stream,
    ) -> Result<(), WireError> {
        let Some(account) = key::account_of(&peer).map(AccountKey) else {
            return Ok(());
        };
        let opening = wire::receive_short(&mut stream, FOLLOWER_BYTES_MAX);
        let Ok(Ok(FollowerMessage::Follow(lease))) = timeout(OPENING_TIMEOUT, opening).await else {
            return Ok(());
        };
        let Some(mut follower) = self.pieces.follow_tab(lease, account) else {
            return Ok(());
        };
        let (mut reader, mut writer) = stream.split();
        let sending = async {
            while let Some(piece) = follower.next_piece().await {
                wire::send(&mut writer, &piece).await?;
            }
            Ok(())
        };
        let hearing = async {
            loop {
                let message = wire::receive_short(&mut reader, FOLLOWER_BYTES_MAX).await?;
                if let FollowerMessage::Stop(request) = message {
                    self.pieces.stop_request(lease, account, request);
                }
            }
        };
        tokio::select! {
            sent = sending => sent,
            heard = hearing => heard,
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_roles::tokens::text::{Message, Role};

    use super::*;

    #[test]
    fn a_request_that_the_rest_of_its_lease_cannot_pay_is_refused_without_text() {
        let tariff = |input_us, time_left| TabRun {
            terms: TokenTerms {
                input_us,
                ..TokenTerms::USUAL
            },
            time_left: DeviceMicros(time_left),
            prompts: Arc::default(),
        };
        // 65,536 tokens of messages, and an answer that is billed as two tokens at most.
        let asked = TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: "word".repeat(65_536),
            }],
            tokens_max: 1,
            ..TextRequest::default()
        };
        let prompt = PromptHistory::default().count_prompt(&asked);
        let refused = |tariff: TabRun| tariff.refuse_too_costly(&asked, prompt);
        assert_eq!(refused(tariff(1_000, 65_538_000)), None);
        let refused = refused(tariff(1_000, 65_537_999)).expect("it is too long");
        assert_eq!(refused.finish, Finish::Busy);
        assert_eq!(refused.count_for(&asked, prompt), TokenCount::default());
        // What is cached costs less.
        let mut history = PromptHistory::default();
        history.on_counted(&asked, asked.count_max());
        let mut cheap = tariff(1_000, 2_000);
        cheap.terms.cached_us = 0;
        assert_eq!(
            cheap.refuse_too_costly(&asked, history.count_prompt(&asked)),
            None
        );
    }
}
