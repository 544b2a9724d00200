//! Defines the interface between an engine and the task that runs a text's sessions (leased
//! providers that hold the model's states): a handle, the orders that the engine sends, and the
//! terms of purchase.

use souk_llm::generation::Step;
use souk_node::buyer::job::Limits;
use souk_node::market::{AccountKey, Receipt};
use souk_vocabulary::processor::RunError;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::step_conversion::StepOutputs;
use crate::steps::{Steps, step_outcome};
use crate::text_error::{TextError, failed_step};

/// Orders that can wait: each caller waits for its own.
const ORDERS_MAX: usize = 16;

/// The terms under which an engine leases providers.
#[derive(Clone)]
pub struct SessionTerms {
    /// The limits of each session. The budget is for all sessions of a text, failed ones included.
    pub limits: Limits,
    /// Number of sessions that compute each token: with 2, souk compares them, and a third decides
    /// if they differ.
    pub sessions: u8,
}

/// The receipts of sessions that are over, and the reason if they failed.
pub type SessionResult = (Vec<Receipt>, Option<TextError>);

/// An order of an engine to the task that runs a text's sessions.
pub enum SessionOrder {
    /// Compute a step.
    Step(StepOrder, oneshot::Sender<Result<StepOutputs, RunError>>),
    /// End all sessions.
    Finish(oneshot::Sender<SessionResult>),
    /// Report the providers of the sessions in use.
    Providers(oneshot::Sender<Vec<AccountKey>>),
}

/// A step to compute.
pub struct StepOrder {
    /// Number of the sequence.
    pub sequence: u32,
    /// Tokens of the sequence before the step, for sessions that may not have them.
    pub before: Vec<u32>,
    /// The step to add.
    pub step: Step,
}

/// A handle to the sessions of a text. If you drop all handles, the sessions end.
#[derive(Clone)]
pub struct TextSessions {
    orders: mpsc::Sender<SessionOrder>,
    /// Whether two sessions compute each step.
    is_compared: bool,
}

impl TextSessions {
    /// Creates a handle, and the orders that it sends.
    pub fn new(is_compared: bool) -> (Self, mpsc::Receiver<SessionOrder>) {
        let (give, orders) = mpsc::channel(ORDERS_MAX);
        let handle = Self {
            orders: give,
            is_compared,
        };
        (handle, orders)
    }

    /// Returns the steps of a sequence. They block, so you must call them on a thread that may.
    pub fn sequence_steps(&self, sequence: u32, handle: &Handle) -> Steps<'static> {
        let (sessions, handle) = (self.clone(), handle.clone());
        let mut tokens = Vec::new();
        Steps(Box::new(move |inputs| {
            let step = Step::of_inputs(inputs);
            let mut before = Vec::new();
            if sessions.is_compared {
                tokens.truncate(step.after);
                before.clone_from(&tokens);
                tokens.extend(&step.tokens);
            }
            let order = StepOrder {
                sequence,
                before,
                step,
            };
            let stepped = handle.block_on(sessions.compute_step(order));
            stepped.map(step_outcome)
        }))
    }

    async fn compute_step(&self, order: StepOrder) -> Result<StepOutputs, RunError> {
        let gone = || failed_step("the sessions are gone".to_owned());
        let (answer, computed) = oneshot::channel();
        let sent = self.orders.send(SessionOrder::Step(order, answer)).await;
        sent.map_err(|_| gone())?;
        computed.await.map_err(|_| gone())?
    }

    /// Returns the accounts of the providers from which the sessions bought last.
    pub async fn provider_accounts(&self) -> Vec<AccountKey> {
        let (answer, accounts) = oneshot::channel();
        // If the task is gone, there are none.
        let _ = self.orders.send(SessionOrder::Providers(answer)).await;
        accounts.await.unwrap_or_default()
    }

    /// Ends the sessions. Returns the receipts since the last call, and the reason if they failed.
    /// The next step will buy others, from any provider.
    pub async fn finish_sessions(&self) -> SessionResult {
        let (answer, finished) = oneshot::channel();
        // If the task is gone, there is neither.
        let _ = self.orders.send(SessionOrder::Finish(answer)).await;
        finished.await.unwrap_or_default()
    }
}
