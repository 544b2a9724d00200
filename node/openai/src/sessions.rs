//! Hosts sessions of language models for a gateway: it opens them by a model's name, and each
//! session answers the requests of OpenAI's API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_gateway::{Code, HostAnswer, Problem, SessionHost, SessionOrder, SessionView};
use souk_llm::bundled_model;
use souk_node::buyer::job::Limits;
use souk_node::buyer::{Buyer, Quote};
use souk_node::market::Receipt;
use souk_texts::{
    SessionSize, SessionTerms, StopSignal, TextEngine, TextError, TextMarket, TextObserver,
    open_model,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::{ServedModel, ServerObserver, ServingOptions, model_paths};

/// Largest number of open sessions: each keeps the weights of its model in a folder.
const SESSIONS_MAX: usize = 16;

/// The sessions of a gateway.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    buyer: Buyer,
    /// The market's folder.
    folder: PathBuf,
    /// The path of each model, by its name.
    models: BTreeMap<String, PathBuf>,
    /// A permit for each session that can still be opened.
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, OpenSession>,
    /// Number of sessions so far.
    count: u64,
}

/// An open session.
struct OpenSession {
    model: Arc<ServedModel>,
    working: JoinHandle<()>,
    stop: StopSignal,
    figures: Arc<Figures>,
    _permit: OwnedSemaphorePermit,
}

/// What a session did.
struct Figures(Mutex<SessionView>);

impl Sessions {
    /// Creates the host of sessions of the bundled model and of the models at `paths`. It reads
    /// each model, because its name is in its files.
    ///
    /// # Errors
    /// [`TextError::Input`] if a model is not usable, or if two have the same name.
    pub fn new(buyer: Buyer, folder: PathBuf, paths: &[PathBuf]) -> Result<Sessions, TextError> {
        let bundled = (
            bundled_model::NAME.to_owned(),
            PathBuf::from(bundled_model::NAME),
        );
        let mut models = BTreeMap::from([bundled]);
        for path in paths {
            let (_, model) = open_model(path, None)?;
            let name = model.card.name;
            if let Some(other) = models.insert(name.clone(), path.clone()) {
                let (path, other) = (path.display(), other.display());
                let cause = format!("{path} and {other} are both called {name:?}");
                return Err(TextError::input(
                    cause,
                    "give one of them, or rename its folder",
                ));
            }
        }
        Ok(Sessions(Arc::new(Inner {
            buyer,
            folder,
            models,
            permits: Arc::new(Semaphore::new(SESSIONS_MAX)),
            state: Mutex::default(),
        })))
    }

    /// Ends all sessions.
    pub async fn close_all(&self) {
        let open = std::mem::take(&mut self.0.lock_state().open);
        for session in open.into_values() {
            session.close().await;
        }
    }

    /// Reserves one of the open sessions. Returns its permit, and the path of its model.
    fn reserve_session(&self, model: &str) -> Result<(OwnedSemaphorePermit, PathBuf), Problem> {
        let path = self.0.models.get(model).ok_or_else(|| {
            let names: Vec<&str> = self.0.models.keys().map(String::as_str).collect();
            let detail = format!("{model} is not a model of this gateway");
            let hint = format!("name one of {}", names.join(", "));
            Problem::new(Code::NotFound, detail, &hint)
        })?;
        let permit = self.0.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            let detail = format!("{SESSIONS_MAX} sessions are open");
            Problem::new(Code::TooMany, detail, "end one by DELETE")
        })?;
        Ok((permit, path.clone()))
    }

    /// Opens the engine of a session and starts to answer its requests.
    fn start_session(
        &self,
        permit: OwnedSemaphorePermit,
        path: &Path,
        order: SessionOrder,
    ) -> Result<SessionView, TextError> {
        let (model, text_model) = open_model(path, order.context)?;
        let size = SessionSize {
            tokens: order.tokens,
            sequences: order.sequences,
            is_embedding: order.is_embedding,
        };
        let budget = order.limits.budget;
        let terms = SessionTerms {
            limits: order.limits,
            sessions: order.verify,
        };
        let market = TextMarket {
            buyer: self.0.buyer.clone(),
            folder: &self.0.folder,
            observer: Arc::new(Log),
        };
        let stop = StopSignal::default();
        let positions = text_model.context_length;
        let engine = TextEngine::open_market(market, model, positions, size, terms, stop.clone())?;
        let mut state = self.0.lock_state();
        state.count += 1;
        let number = state.count;
        let view = SessionView {
            id: number.to_string(),
            model: order.model,
            opened: format_rfc3339(unix_ms()),
            base_url: String::new(),
            budget: budget.map(|budget| budget.0),
            answered: 0,
            failed: 0,
            paid: 0,
            leases: Vec::new(),
        };
        let figures = Arc::new(Figures(Mutex::new(view.clone())));
        let options = ServingOptions {
            keep_alive: order.keep_alive,
            drafts_max: 0,
            is_embedding: order.is_embedding,
            aliases: vec![view.model.clone()],
        };
        let (model, working) = ServedModel::start(text_model, engine, options, figures.clone());
        let session = OpenSession {
            model,
            working,
            stop,
            figures,
            _permit: permit,
        };
        state.open.insert(number, session);
        Ok(view)
    }
}

impl Inner {
    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenSession {
    /// Ends the session at once, and returns its last state.
    async fn close(self) -> SessionView {
        self.model.close();
        self.stop.raise_signal();
        if let Err(error) = self.working.await {
            tracing::error!(%error, "the worker of a session failed");
        }
        self.figures.lock_view().clone()
    }
}

impl SessionHost for Sessions {
    fn models(&self) -> Vec<String> {
        self.0.models.keys().cloned().collect()
    }

    fn open_session(&self, order: SessionOrder) -> HostAnswer<Result<SessionView, Problem>> {
        let sessions = self.clone();
        Box::pin(async move {
            let (permit, path) = sessions.reserve_session(&order.model)?;
            let opened = spawn_blocking(move || sessions.start_session(permit, &path, order)).await;
            let opened = opened.map_err(Problem::unexpected_failure)?;
            opened.map_err(|error| match error.is_input() {
                true => Problem::new(Code::Input, error, "give another model"),
                false => Problem::unexpected_failure(error),
            })
        })
    }

    fn sessions(&self) -> Vec<SessionView> {
        let state = self.0.lock_state();
        let views = state.open.values().map(|it| it.figures.lock_view().clone());
        views.collect()
    }

    fn close_session(&self, id: &str) -> HostAnswer<Option<SessionView>> {
        let id = id.parse().ok();
        let closing = id.and_then(|id: u64| self.0.lock_state().open.remove(&id));
        Box::pin(async move {
            match closing {
                Some(session) => Some(session.close().await),
                None => None,
            }
        })
    }

    fn session_paths(&self, id: &str) -> Option<Router> {
        let state = self.0.lock_state();
        let session = state.open.get(&id.parse().ok()?)?;
        Some(model_paths(session.model.clone()))
    }
}

impl Figures {
    fn lock_view(&self) -> MutexGuard<'_, SessionView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerObserver for Figures {
    fn on_answered(&self, summary: &str) {
        tracing::info!(summary, "a request was answered");
        self.lock_view().answered += 1;
    }

    fn on_request_failed(&self, cause: &str) {
        tracing::warn!(cause, "a request failed");
        self.lock_view().failed += 1;
    }

    fn on_session_ended(&self, receipts: &[Receipt]) {
        let mut view = self.lock_view();
        for receipt in receipts {
            view.paid += receipt.body.amount.0;
            view.leases.push(receipt.body.lease.0);
        }
    }
}

/// Writes plans and notices to the log.
struct Log;

impl TextObserver for Log {
    fn describe_plan(&self, quote: &Quote, _: &Limits) -> Vec<String> {
        vec![format!("plan {}", quote.hash())]
    }

    fn show_plan(&self, plan: &[String], providers: &str) {
        tracing::info!(plan = plan.join("; "), providers, "souk buys a session");
    }

    fn show_notice(&self, notice: &str) {
        tracing::info!("{notice}");
    }
}
