//! What runs where and when.
//!
//! A [`Problem`](problem::Problem) is tasks, devices and links in whole numbers, and a
//! [`planner`](mod@planner) makes a [`Schedule`](schedule::Schedule) of it. A graph over [`Offer`]s
//! becomes such a problem ([`tasks`]), and its schedule is gathered into parts that one device runs
//! as a whole: [`plan()`] does so over a market's offers. One operator may be shared by several
//! devices ([`split`]). All of it goes by one [`Objective`].

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
    Activations, Alternative, Plan, PlanError, PlanOptions, PlannedPart, Reason, Single, Transfer,
    Utilisation, Weights, Why, pareto, plan,
};
pub use time::{NEVER, SECOND, TIME_MAX, Time, time_of};
