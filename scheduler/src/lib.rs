//! Graphs, plans and their execution.
//!
//! The planning half turns an ONNX model into a [`Graph`](graph::Graph), decides what runs where
//! and when, and cuts the graph into subgraphs that are ONNX models again. It is pure: no clock, no
//! randomness but seeds it is given, no devices, and money only as a plain number.

#![forbid(unsafe_code)]

pub mod apart;
#[cfg(feature = "bench")]
pub mod bench;
pub mod bookings;
pub mod cost;
pub mod cut;
pub mod executor;
pub mod explain;
pub mod goal;
pub mod graph;
pub mod partition;
pub mod plan;
pub mod planner;
pub mod problem;
pub mod report;
pub mod run;
pub mod schedule;
pub mod shape;
pub mod split;
pub mod tasks;
pub mod timeline;
pub mod transform;
