//! `/v1/trainings`: lists the runs of training that were begun from this folder, and shows their
//! losses.

use axum::Json;
use axum::extract::{Path, State};
use tokio::task::spawn_blocking;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Parameters;
use crate::page::{Page, Paging};
use crate::problem::Problem;
use crate::state::SharedState;
use crate::training_view::{self, LossPoint, TrainingDetail, TrainingView};

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(training))
        .routes(routes!(losses))
}

/// All runs of training, the newest first.
#[utoipa::path(get, path = "/v1/trainings", tag = "trainings", params(Paging),
    responses((status = 200, body = Page<TrainingView>)), security(("token" = ["read"])))]
async fn list(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<TrainingView>, Problem> {
    let parse = |text: &str| {
        let (begun, id) = text.split_once('.')?;
        Some((std::cmp::Reverse(begun.parse::<u64>().ok()?), id.to_owned()))
    };
    let key = |run: &TrainingView| (std::cmp::Reverse(run.begun_ms), run.id.clone());
    let write = |(begun, id): &(std::cmp::Reverse<u64>, String)| format!("{}.{id}", begun.0);
    let folder = state.folder.clone();
    let all = spawn_blocking(move || training_view::all_trainings(&folder)).await;
    let all = all.map_err(Problem::unexpected_failure)?;
    Page::from_entries(all, key, &paging, parse, write)
}

/// One run of training, with its losses as a curve.
#[utoipa::path(get, path = "/v1/trainings/{id}", tag = "trainings",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = TrainingDetail)), security(("token" = ["read"])))]
async fn training(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<TrainingDetail>, Problem> {
    let folder = state.folder.clone();
    let detail = spawn_blocking(move || {
        let run = training_view::find_training(&folder, &id)?;
        Ok::<_, Problem>(Json(training_view::describe_detail(&run)))
    });
    detail.await.map_err(Problem::unexpected_failure)?
}

/// The loss of each step that counts, the first one first.
#[utoipa::path(get, path = "/v1/trainings/{id}/losses", tag = "trainings",
    params(("id" = String, Path, description = "Its id, or the beginning of it"), Paging),
    responses((status = 200, body = Page<LossPoint>)), security(("token" = ["read"])))]
async fn losses(
    State(state): State<SharedState>,
    Path(id): Path<String>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<LossPoint>, Problem> {
    let folder = state.folder.clone();
    let losses = spawn_blocking(move || {
        let run = training_view::find_training(&folder, &id)?;
        Ok::<_, Problem>(training_view::step_losses(&run))
    });
    let losses = losses.await.map_err(Problem::unexpected_failure)??;
    let parse = |text: &str| text.parse().ok();
    Page::from_entries(losses, |point| point.step, &paging, parse, u64::to_string)
}
