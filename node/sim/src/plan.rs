//! One number makes a plan: the cluster, the workload, the faults and their times. Pure, and
//! printed when a world fails.

use std::fmt;

use flower_node::env::SeedTree;
use rand::{Rng, rngs::StdRng, seq::SliceRandom};

use flower_load::workload::Workload;

use crate::node::NodeLimits;

/// Most nodes that a world has.
pub const NODES_MAX: u32 = 5;

/// Everything that a seed decides beforehand.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number.
    pub seed: u64,
    /// `spec.replicas` at the beginning.
    pub replicas: u32,
    /// Settings of nodes.
    pub limits: NodeLimits,
    /// Largest delay of a message, milliseconds.
    pub latency_ms: u64,
    /// Size of each volume.
    pub disk_bytes: u64,
    /// What clients do.
    pub workload: Workload,
    /// Faults, by the time after the clients began.
    pub faults: Vec<(u64, Fault)>,
    /// When the last of them is over, milliseconds.
    pub ends_ms: u64,
}

/// Whom a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The node of an ordinal.
    Node(u32),
    /// Whoever leads then.
    Leader,
    /// A follower.
    Follower,
    /// A follower that the others reach.
    Near,
}

/// One fault. Times are milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Cut off from all other nodes.
    Isolate {
        /// Whom.
        whom: Whom,
        /// From clients and the operator too.
        wholly: bool,
        /// For how long.
        ms: u64,
    },
    /// Sends nothing to (or hears nothing from) the other nodes.
    OneWay {
        /// Whom.
        whom: Whom,
        /// It does not hear; else it is not heard.
        deaf: bool,
        /// For how long.
        ms: u64,
    },
    /// Two that do not reach each other, while both reach the others.
    Pair {
        /// One.
        a: u32,
        /// The other.
        b: u32,
        /// For how long.
        ms: u64,
    },
    /// All messages take longer.
    Delay {
        /// Largest delay.
        latency_ms: u64,
        /// For how long.
        ms: u64,
    },
    /// The process ends.
    Crash {
        /// Whom.
        whom: Whom,
        /// With the host's power.
        power: bool,
        /// Until it starts again.
        ms: u64,
    },
    /// All hosts lose power.
    Blackout {
        /// Until the first starts again.
        ms: u64,
    },
    /// All hosts lose power as soon as somebody is elected in a later term.
    Usurp {
        /// Until the first starts again.
        ms: u64,
    },
    /// SIGTERM, and a start.
    Restart {
        /// Whom.
        whom: Whom,
    },
    /// Nothing goes in or out, and no job begins; then all of it at once.
    Pause {
        /// Whom.
        whom: Whom,
        /// For how long.
        ms: u64,
    },
    /// Every job of a lane takes longer.
    SlowDisk {
        /// Whom.
        whom: Whom,
        /// At most by so much.
        by_ms: u64,
        /// For how long.
        ms: u64,
    },
    /// Every job of the log's lane takes longer.
    SlowLog {
        /// Whom.
        whom: Whom,
        /// At most by so much.
        by_ms: u64,
        /// For how long.
        ms: u64,
    },
    /// The volume has nothing free.
    FullDisk {
        /// Whom.
        whom: Whom,
        /// For how long.
        ms: u64,
    },
    /// Writes fail.
    BadDisk {
        /// Whom.
        whom: Whom,
    },
    /// The volume is empty after a crash, and the name is the same.
    Wipe {
        /// Whom.
        whom: Whom,
        /// Until it starts again.
        ms: u64,
        /// The leader loses power at the moment at which it starts.
        then_leader: bool,
    },
    /// A file of the volume is garbage after a crash.
    Rot {
        /// Whom.
        whom: Whom,
    },
    /// The wall clock steps.
    Clock {
        /// Whom.
        whom: Whom,
        /// By so much.
        by_ms: i64,
    },
    /// The monotonic clock goes at another speed.
    Drift {
        /// Whom.
        whom: Whom,
        /// Of the true one, thousandths.
        permille: u64,
    },
    /// `spec.replicas` changes.
    Scale {
        /// To.
        replicas: u32,
    },
    /// The pod template changes: every pod is to be restarted.
    Rollout,
    /// The operator is killed and started.
    OperatorDies,
    /// An admin call of the past is delivered again.
    StaleCall,
    /// Another bundle is to run.
    Deploy,
}

impl Plan {
    /// The plan of a seed; clients work under faults for about `seconds` of the world's time.
    pub fn from_seed(seed: u64, seconds: u64) -> Self {
        let seeds = SeedTree::from_number(seed).child("plan");
        let rng = &mut seeds.rng();
        let replicas = *pick(rng, &[3, 3, 3, 3, 5, 1]);
        let limits = NodeLimits {
            snapshot_after_log_bytes: *pick(rng, &[8 << 10, 32 << 10, 256 << 10]),
            checkpoint_bytes: *pick(rng, &[4 << 10, 32 << 10, 1 << 20]),
            checkpoint_ms: *pick(rng, &[50, 300, 1_000, 5_000]),
            page_cache_bytes: *pick(rng, &[1 << 20, 4 << 20]),
            log_tail_bytes: *pick(rng, &[4 << 10, 64 << 10, 1 << 20]),
            ..NodeLimits::default()
        };
        let workload = Workload {
            clients: rng.random_range(2..=6),
            watchers: rng.random_range(1..=2),
            keys: rng.random_range(1..=6),
            lists: rng.random_range(1..=3),
            accounts: rng.random_range(2..=5),
            think_ms: *pick(rng, &[2, 60, 200]),
            tries: *pick(rng, &[1, 4, 20]),
            writes: *pick(rng, &[30, 50, 80]),
            append_until: u64::MAX,
        };
        let latency_ms = *pick(rng, &[1, 3, 10, 40]);
        let (faults, ends_ms) = faults(rng, replicas, seconds * 1_000);
        Self {
            seed,
            replicas,
            limits,
            latency_ms,
            disk_bytes: 1 << 30,
            workload,
            faults,
            ends_ms,
        }
    }
}

fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

fn faults(rng: &mut StdRng, replicas: u32, end_ms: u64) -> (Vec<(u64, Fault)>, u64) {
    if rng.random_bool(0.6) {
        let theme = rng.random_range(0..THEMES);
        return (themed(rng, theme, replicas, end_ms), end_ms);
    }
    // A world has a few kinds of faults and many of each: one of everything hides what only
    // a run of the same shows.
    let mut kinds: Vec<u32> = (0..KINDS).collect();
    kinds.shuffle(rng);
    kinds.truncate(rng.random_range(2..=6));
    let pace = *pick(rng, &[400, 1_500, 4_000]);
    let (mut at, mut all) = (500, Vec::new());
    while at < end_ms {
        let kind = *pick(rng, &kinds);
        all.push((at, fault(rng, kind, replicas)));
        at += rng.random_range(pace / 4..=pace * 2);
    }
    (all, end_ms)
}

const KINDS: u32 = 20;
const THEMES: u32 = 8;

/// Faults that belong together: combinations that chance alone makes too rarely.
fn themed(rng: &mut StdRng, theme: u32, replicas: u32, end_ms: u64) -> Vec<(u64, Fault)> {
    let (mut at, mut all) = (300, Vec::new());
    while at < end_ms {
        let short = *pick(rng, &[0, 20, 100, 300]);
        let long = *pick(rng, &[1_200, 3_000, 6_000]);
        let (scene, pause) = match theme {
            0 => blinks(rng, short),
            1 => ambush(rng, replicas, short),
            2 => deposed(rng, long),
            3 => churn(rng, replicas, short),
            4 => power(rng, short),
            5 => usurper(rng, replicas, short),
            6 => behind(rng, replicas, short),
            _ => clocks(rng, replicas),
        };
        all.extend(scene.into_iter().map(|(later, fault)| (at + later, fault)));
        at += rng.random_range(pause / 2..=pause * 3 / 2);
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// Faults by the time from the scene's beginning, and about how long until the next scene.
type Scene = (Vec<(u64, Fault)>, u64);

fn now(fault: Fault, pause: u64) -> Scene {
    (vec![(0, fault)], pause)
}

/// The leader loses power and is back before anybody misses it.
fn blinks(rng: &mut StdRng, short: u64) -> Scene {
    match rng.random_range(0..4) {
        0 => now(slow(Whom::Leader, 80, 3_000), 100),
        _ => now(crash(Whom::Leader, true, short), 1_500),
    }
}

/// A volume is lost while another member is behind, and the leader with it for a while.
fn ambush(rng: &mut StdRng, replicas: u32, short: u64) -> Scene {
    let whom = Whom::Node(rng.random_range(0..replicas));
    let behind = Fault::Isolate {
        whom,
        wholly: false,
        ms: 6_000,
    };
    let lost = rng.random_range(300..=2_000);
    (vec![(0, behind), (lost, wipe(short, true))], 8_000)
}

/// Leaders that do not know yet that they are none.
fn deposed(rng: &mut StdRng, ms: u64) -> Scene {
    let whom = Whom::Leader;
    match rng.random_range(0..3) {
        0 => now(Fault::Pause { whom, ms }, 4_000),
        _ => {
            let wholly = false;
            now(Fault::Isolate { whom, wholly, ms }, 3_000)
        }
    }
}

/// Members come and go, and old calls are heard again.
fn churn(rng: &mut StdRng, replicas: u32, short: u64) -> Scene {
    match rng.random_range(0..5) {
        0 => {
            let replicas = if replicas == 5 { 3 } else { 5 };
            now(Fault::Scale { replicas }, 2_500)
        }
        1 => now(Fault::Scale { replicas }, 2_500),
        2 => now(wipe(short, false), 3_000),
        _ => now(Fault::StaleCall, 600),
    }
}

/// The power fails, here and everywhere.
fn power(rng: &mut StdRng, short: u64) -> Scene {
    match rng.random_range(0..4) {
        0 => now(Fault::Blackout { ms: short }, 2_500),
        1 => now(slow(Whom::Follower, 80, 2_000), 200),
        2 => now(crash(Whom::Leader, true, short), 800),
        _ => now(crash(Whom::Follower, true, short), 800),
    }
}

/// Logs are slow, and the power fails everywhere as soon as another has been elected.
fn usurper(rng: &mut StdRng, replicas: u32, short: u64) -> Scene {
    let by_ms = *pick(rng, &[80, 600, 2_000]);
    let slow = |ordinal| Fault::SlowLog {
        whom: Whom::Node(ordinal),
        by_ms,
        ms: 5_000,
    };
    let mut scene: Vec<_> = (0..replicas).map(|ordinal| (0, slow(ordinal))).collect();
    scene.push((40, Fault::Usurp { ms: short }));
    scene.push((50, crash(Whom::Leader, true, 4_000)));
    (scene, 5_000)
}

/// A member whose log is slow loses power while its state runs ahead.
fn behind(rng: &mut StdRng, replicas: u32, short: u64) -> Scene {
    let whom = Whom::Node(rng.random_range(0..replicas));
    let slow = Fault::SlowLog {
        whom,
        by_ms: *pick(rng, &[80, 600, 2_000]),
        ms: 3_000,
    };
    let cut = rng.random_range(100..=2_500);
    (vec![(0, slow), (cut, crash(whom, true, short))], 2_500)
}

/// Clocks run at different speeds and step, while leaders are cut off.
fn clocks(rng: &mut StdRng, replicas: u32) -> Scene {
    let whom = Whom::Node(rng.random_range(0..replicas));
    match rng.random_range(0..3) {
        0 => {
            let (wholly, ms) = (false, 3_000);
            let whom = Whom::Leader;
            now(Fault::Isolate { whom, wholly, ms }, 2_500)
        }
        1 => {
            let by_ms = rng.random_range(-4_000_000..=4_000_000);
            now(Fault::Clock { whom, by_ms }, 500)
        }
        _ => {
            let permille = *pick(rng, &[500, 900, 990, 1_010, 1_100, 2_000]);
            now(Fault::Drift { whom, permille }, 500)
        }
    }
}

fn wipe(ms: u64, then_leader: bool) -> Fault {
    Fault::Wipe {
        whom: Whom::Near,
        ms,
        then_leader,
    }
}

fn crash(whom: Whom, power: bool, ms: u64) -> Fault {
    Fault::Crash { whom, power, ms }
}

fn slow(whom: Whom, by_ms: u64, ms: u64) -> Fault {
    Fault::SlowDisk { whom, by_ms, ms }
}

fn fault(rng: &mut StdRng, kind: u32, replicas: u32) -> Fault {
    let whom = match rng.random_range(0..5) {
        0 | 1 => Whom::Leader,
        2 => Whom::Follower,
        _ => Whom::Node(rng.random_range(0..replicas)),
    };
    let ms = *pick(rng, &[50, 300, 1_200, 3_000, 8_000]);
    match kind {
        0 | 1 => Fault::Isolate {
            whom,
            wholly: rng.random_bool(0.5),
            ms,
        },
        2 => Fault::OneWay {
            whom,
            deaf: rng.random_bool(0.5),
            ms,
        },
        3 => Fault::Pair {
            a: rng.random_range(0..replicas),
            b: rng.random_range(0..replicas),
            ms,
        },
        4 => Fault::Delay {
            latency_ms: *pick(rng, &[20, 100, 400]),
            ms,
        },
        5 | 6 => Fault::Crash {
            whom,
            power: rng.random_bool(0.7),
            ms,
        },
        7 => Fault::Blackout { ms },
        8 => Fault::Restart { whom },
        9 => Fault::Pause { whom, ms },
        10 => Fault::SlowDisk {
            whom,
            by_ms: *pick(rng, &[10, 80, 600]),
            ms,
        },
        11 => Fault::FullDisk { whom, ms },
        12 => Fault::BadDisk { whom },
        13 | 14 => Fault::Wipe {
            whom,
            ms,
            then_leader: rng.random_bool(0.5),
        },
        15 => match rng.random_range(0..3) {
            0 => Fault::Rot { whom },
            1 => Fault::Deploy,
            _ => Fault::Clock {
                whom,
                by_ms: rng.random_range(-4_000_000..=4_000_000),
            },
        },
        16 => Fault::Scale {
            replicas: match replicas {
                1 => *pick(rng, &[1, 3]),
                _ => *pick(rng, &[3, 5]),
            },
        },
        17 => Fault::Rollout,
        18 => Fault::OperatorDies,
        _ => Fault::StaleCall,
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} replicas, latency up to {} ms, volumes of {} MiB",
            self.seed,
            self.replicas,
            self.latency_ms,
            self.disk_bytes >> 20
        )?;
        writeln!(f, "  {:?}", self.limits)?;
        writeln!(f, "  {:?}", self.workload)?;
        for (at, fault) in &self.faults {
            writeln!(f, "  {:>7.3} s {fault:?}", *at as f64 / 1_000.0)?;
        }
        write!(f, "  {:>7.3} s heal", self.ends_ms as f64 / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan_and_all_kinds_of_faults_occur() {
        let text = |seed| Plan::from_seed(seed, 20).to_string();
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        let all: String = (0..300).map(text).collect();
        for kind in [
            "Isolate",
            "OneWay",
            "Pair",
            "Delay",
            "Crash",
            "Blackout",
            "Restart",
            "Pause",
            "SlowDisk",
            "SlowLog",
            "Usurp",
            "Drift",
            "FullDisk",
            "BadDisk",
            "Wipe",
            "Rot",
            "Clock",
            "Scale",
            "Rollout",
            "OperatorDies",
            "StaleCall",
            "Deploy",
        ] {
            assert!(all.contains(kind), "{kind}");
        }
    }
}
