//! The decisions of a validator (a node that keeps a replica of the market's log and state): what
//! it sends, writes and answers, which orders about the members it passes on, and who is a member.

pub mod action;
mod contradictions;
pub mod core;
pub mod cosigning;
pub mod event;
pub mod exchange;
pub mod jury;
pub mod members;
mod proposals;
pub mod questions;
pub mod steps;
mod vouchers;
