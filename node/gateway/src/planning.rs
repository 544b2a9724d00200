//! Plans jobs over the current book.

use std::time::Instant;

use serde_json::Value;
use souk_node::buyer::checked::{PLANS_FOLDER, ShownPlan};
use souk_node::buyer::job::Job;
use souk_node::buyer::{Quote, plan_json};

use crate::job_body::JobBody;
use crate::plans::MadePlan;
use crate::problem::Problem;
use crate::state::State;

/// Plans a job over the current book and remembers the plan.
///
/// # Errors
/// Fails if no plan is possible.
pub async fn plan(state: &State, body: JobBody) -> Result<Value, Problem> {
    let (job, _) = body.job(|id| state.contents.read(id))?;
    let began = Instant::now();
    let quote = state.buyer.quote(&job).await?;
    state.figures.planned(began.elapsed());
    let alternatives = quote.alternatives(&job.limits)?;
    let plan = plan_json::with_choice(&quote, &job.limits, &alternatives);
    shown(state, &job, &quote)?.remember(&state.folder.join(PLANS_FOLDER))?;
    let made = MadePlan {
        body,
        plan: plan.clone(),
    };
    state.plans.put(quote.hash().to_string(), made);
    Ok(plan)
}

/// Returns the plan in the form in which a client can submit it later.
///
/// # Errors
/// Fails if the model cannot become one subgraph.
pub fn shown(state: &State, job: &Job, quote: &Quote) -> Result<ShownPlan, Problem> {
    Ok(ShownPlan::new(quote, state.buyer.subject(job, quote)?))
}
