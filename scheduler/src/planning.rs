//! Plans where and when tasks run.
//!
//! A [`Problem`](problem::Problem) consists of tasks, devices and links in whole numbers, and a
//! [`planner`](mod@planner) turns it into a [`Schedule`](schedule::Schedule). A graph over
//! [`Offer`]s becomes such a problem ([`tasks`]), and [`plan_graph()`] gathers its schedule into
//! parts that one device of a market runs as a whole. Several devices can share one operator
//! ([`split`]). All of it follows one [`Objective`].

pub(crate) mod objective;
pub(crate) mod offer;
pub(crate) mod plan;
pub mod planner;
pub mod problem;
pub mod schedule;
pub mod split;
pub mod tasks;
pub(crate) mod time;

pub use objective::{Figures, Objective, ObjectiveUnknown, Score};
pub use offer::{Link, Links, Offer, Operators, Slowness, Throughput, cost_seconds, node_seconds};
pub use plan::{
    Activations, Alternative, PlacementExplanation, Plan, PlanError, PlanOptions, PlannedPart,
    Reason, SingleDevicePlan, Transfer, Utilisation, Weights, pareto_plans, plan_graph,
};
pub use time::{NEVER, SECOND, TIME_MAX, Time, time_of};
