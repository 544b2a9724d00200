//! Graphs, plans and their execution, on four floors; each knows only those below it.
//!
//! - [`graph`]: an ONNX model as a [`Graph`](graph::Graph) with shapes and work, and its cuts into
//!   subgraphs that are ONNX models again.
//! - [`planning`]: what runs where and when, over the offers of a market or the devices of a
//!   machine. It is pure: no clock, no randomness but seeds it is given, no devices, and money only
//!   as a plain number.
//! - [`learning`]: what devices were seen to take, which corrects the next plan.
//! - [`execution`]: subgraphs run on the devices of this machine, on one or on a group.

#![forbid(unsafe_code)]

pub mod execution;
pub mod graph;
pub mod learning;
pub mod planning;
