//! Tests of the operator as a whole: one binary, so that it links once.

mod crd;
mod golden;
mod membership;
mod reconcile;
mod support;
