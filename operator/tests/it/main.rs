//! Tests of the operator as a whole: one binary, so that it links once.

mod controller;
mod crd;
mod docs;
mod golden;
mod membership;
mod plan;
mod reconcile;
mod recovery;
mod support;
