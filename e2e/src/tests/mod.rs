//! The cluster tests, one file each. A test has a namespace of its own and says what it saw.

use anyhow::Result;
use futures::future::BoxFuture;

use crate::cluster::Scene;

mod adoption;
mod bad_image;
mod cel;
mod derived;
mod drained;
mod etcd_restored;
mod faults;
mod grows;
mod helm_test;
mod leader_killed;
mod loaded;
mod memory;
mod metrics;
mod node_lost;
mod operator_killed;
mod operator_quiet;
mod quarter_hour;
mod rbac;
mod recover;
mod refusals;
mod restarts;
mod scales;
mod set_deleted;
mod storage_full;
mod volume_lost;
mod volume_wiped;
mod watched;

/// One test on the real cluster.
pub struct Test {
    /// Its name, also of its namespace and of the folder that a failure leaves.
    pub name: &'static str,
    /// Whether it runs without `--all`.
    pub in_ci: bool,
    /// What it shows.
    pub what: &'static str,
    /// Runs it; returns what it saw.
    pub run: fn(Scene) -> BoxFuture<'static, Result<String>>,
}

/// All of them, in the order in which they run.
pub const ALL: &[Test] = &[
    grows::TEST,
    quarter_hour::TEST,
    leader_killed::TEST,
    volume_lost::FOLLOWER,
    volume_lost::LEADER,
    volume_wiped::TEST,
    metrics::TEST,
    cel::TEST,
    helm_test::TEST,
    refusals::TEST,
    storage_full::TEST,
    bad_image::TEST,
    adoption::TEST,
    operator_killed::ONE,
    set_deleted::TEST,
    scales::TEST,
    restarts::TEST,
    watched::TEST,
    derived::REPLACED,
    derived::BUILT,
    memory::TEST,
    drained::TEST,
    node_lost::A_WHILE,
    node_lost::FOR_GOOD,
    operator_killed::GROWING,
    operator_killed::CHANGING,
    operator_quiet::TEST,
    rbac::TEST,
    loaded::TEST,
    faults::TWO_KILLED,
    faults::ALL_KILLED,
    faults::LEADER_STOPPED,
    faults::SLOW_DISK,
    faults::OPERATORS,
    faults::API_GONE,
    recover::VOLUMES,
    recover::NODES,
    etcd_restored::TEST,
];
