//! Imports ONNX models as graphs, plans which device runs which part of a graph and when, and runs
//! the parts. The modules are layers, the lowest first; each uses only layers above it in this
//! list:
//!
//! - [`graph`]: an ONNX model as a [`Graph`](graph::Graph) with shapes and work, and its cuts into
//!   subgraphs that are ONNX models again.
//! - [`gradient`]: the graph of a training step, made from a model by reverse differentiation.
//! - [`planning`]: plans of where and when tasks run, over the offers of a market or the devices of
//!   a machine. It is pure: no clock, no randomness except by the caller's seeds, no devices, and
//!   money only as a plain number.
//! - [`learning`]: the measured costs of devices, which correct the next plan.
//! - [`execution`]: subgraphs that run on the devices of this machine, on one or on a group.
//!
//! For example, you can plan a model over two devices and cut it into a part for each:
//!
//! ```
//! use souk_memory::DType;
//! use souk_scheduler::graph::{Bindings, Graph};
//! use souk_scheduler::planning::{
//!     Link, Links, Offer, Operators, PlanOptions, Slowness, Throughput, plan_graph,
//! };
//!
//! let model = std::fs::read("../testnet/models/digits/digits.onnx")?;
//! let inputs = Bindings::new().with_input("images", DType::F32, &[360, 1, 8, 8]);
//! let graph = Graph::import(model.into(), &inputs)?;
//!
//! let offer = |label: &str, flops_per_second, cost_per_second| Offer {
//!     label: label.to_owned(),
//!     throughput: vec![Throughput { class: None, dtype: None, flops_per_second }],
//!     bytes_per_second: 1e11,
//!     memory_bytes: 1 << 30,
//!     launch_seconds: 1e-6,
//!     slowness: Slowness::default(),
//!     cost_per_second,
//!     busy_watts: None,
//!     operators: Operators::All,
//! };
//! let offers = [offer("quick", 1e12, 2.0), offer("cheap", 2e10, 0.1)];
//! let link = Link { latency_seconds: 1e-4, bytes_per_second: 1e9 };
//! let options = PlanOptions { min_devices: 2, ..PlanOptions::default() };
//! let plan = plan_graph(&graph, &offers, &Links::uniform(2, link), &options)?;
//!
//! let parts = plan.cut_graph(&graph)?;
//! assert_eq!(parts.len(), plan.parts.len());
//! assert!(plan.parts.iter().any(|part| part.label == "cheap"));
//! assert!(souk_onnx::decode_model(parts[0].model.clone())?.graph.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod execution;
pub mod gradient;
pub mod graph;
pub mod learning;
pub mod planning;
