//! Plans a job over the current order book for a client of the gateway. It keeps the request and
//! the plan in memory, so that the client can submit it by its hash alone, and a short record of
//! the plan in a file, which a later submission must fit.

use std::time::Instant;

use serde_json::Value;
use souk_node::buyer::job::Job;
use souk_node::buyer::pinned_plan::{PLANS_FOLDER, PinnedPlan};
use souk_node::buyer::{Quote, plan_json};

use crate::job_body::JobBody;
use crate::large_work::TURN_TIMEOUT;
use crate::plans::StoredPlan;
use crate::problem::Problem;
use crate::state::{SharedState, State};

/// Plans a job over the current book and remembers the plan, in the turn of the reader.
///
/// # Errors
/// Fails if no plan is possible, or no turn comes.
pub async fn plan_job(state: &SharedState, body: JobBody) -> Result<Value, Problem> {
    let own = state.clone();
    let planning = async move { plan_at_once(&own, body).await };
    state.reader_turns.run_in_turn(planning).await
}

async fn plan_at_once(state: &State, body: JobBody) -> Result<Value, Problem> {
    let (mut job, _) = body.to_job(|id| state.contents.read(id))?;
    job.limits.wait = job.limits.wait.min(TURN_TIMEOUT);
    let began = Instant::now();
    let quote = state.buyer.quote_job(&job).await?;
    state.figures.observe_plan(began.elapsed());
    let alternatives = quote.find_alternatives(&job.limits)?;
    let plan = plan_json::with_choice(&quote, &job.limits, &alternatives);
    pin_plan(state, &job, &quote)?.save_plan(&state.folder.join(PLANS_FOLDER))?;
    let made = StoredPlan {
        body,
        plan: plan.clone(),
    };
    state.plans.add_plan(quote.hash().to_string(), made);
    Ok(plan)
}

/// Returns the record of a plan (hash, job, price, time) that a later submission must fit.
///
/// # Errors
/// Fails if the model cannot become one subgraph.
pub fn pin_plan(state: &State, job: &Job, quote: &Quote) -> Result<PinnedPlan, Problem> {
    Ok(PinnedPlan::new(quote, state.buyer.job_subject(job, quote)?))
}
