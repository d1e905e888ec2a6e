//! What clients did and were told, in the order in which it happened. Data only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// A call and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// Who called.
    pub client: u32,
    /// Node that was asked last.
    pub at: String,
    /// What.
    pub call: Call,
    /// Place in the history at which it was called.
    pub begun: u64,
    /// Place at which it ended; absent when it never did.
    pub ended: Option<u64>,
    /// How.
    pub outcome: Outcome,
    /// It was tried so often, under one key.
    pub tries: u32,
    /// Of the tries, so many were answered from the receipt.
    pub replays: u32,
}

/// A line of a history in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// A call.
    Op(Op),
    /// The last one: what is stored when nobody calls any more.
    End {
        /// Serials of all traces, in order.
        traces: Vec<u64>,
    },
}

/// How fresh a read is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// The node's newest state.
    Local,
    /// At least what this client has seen: a revision.
    Session(u64),
    /// Linearizable.
    Fresh,
    /// Told by a watch.
    Watch,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Sets a register.
    Put {
        /// The register.
        key: String,
        /// Nobody else writes this.
        serial: u64,
    },
    /// Moves money.
    Transfer {
        /// Nobody else writes this.
        serial: u64,
    },
    /// Reads a register.
    Get {
        /// The register.
        key: String,
        /// How.
        class: Class,
    },
    /// Puts a serial at the end of a list.
    Append {
        /// The list.
        list: String,
        /// Nobody else writes this.
        serial: u64,
    },
    /// Reads all lists.
    Lists {
        /// How.
        class: Class,
    },
    /// Reads all registers and accounts.
    Snapshot {
        /// How.
        class: Class,
    },
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Written: the register's version, at a revision.
    Written {
        /// Version, or place in a list; 0 for transfers.
        version: u64,
        /// Revision.
        revision: u64,
    },
    /// A declared fault: nothing was written.
    Fault,
    /// Refused each time, and said so: nothing was written.
    NotApplied,
    /// It may have been.
    Unknown,
    /// Read.
    Read {
        /// Serial and version, 0 when it was never set.
        found: (u64, u64),
        /// Revision.
        revision: u64,
    },
    /// Read.
    Snapshot(Box<Snapshot>),
    /// Read.
    Lists(Box<Lists>),
    /// A read without an answer.
    None,
    /// A retry was answered otherwise than the call.
    Forked(String),
}

/// All registers and accounts at a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Revision.
    pub revision: u64,
    /// Key, serial, version.
    pub registers: Vec<(String, u64, u64)>,
    /// Name, balance.
    pub accounts: Vec<(String, i64)>,
}

/// All lists at a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lists {
    /// Revision.
    pub revision: u64,
    /// The lists.
    pub lists: Vec<List>,
}

/// One list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Its name.
    pub name: String,
    /// Places and serials, as they are stored.
    pub items: Vec<(u64, u64)>,
    /// The value that is kept of it.
    pub holds: u64,
}

/// The history of a world. Clones are the same one.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    clock: u64,
    ops: Vec<Op>,
}

impl Call {
    /// The serial that a write carries.
    pub fn serial(&self) -> Option<u64> {
        match self {
            Self::Put { serial, .. } | Self::Transfer { serial } | Self::Append { serial, .. } => {
                Some(*serial)
            }
            Self::Get { .. } | Self::Snapshot { .. } | Self::Lists { .. } => None,
        }
    }

    /// How a read was asked for.
    pub fn class(&self) -> Option<Class> {
        match self {
            Self::Get { class, .. } | Self::Snapshot { class } | Self::Lists { class } => {
                Some(*class)
            }
            Self::Put { .. } | Self::Transfer { .. } | Self::Append { .. } => None,
        }
    }
}

impl History {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins; answers its number.
    pub fn begin(&self, client: u32, call: Call) -> usize {
        let mut inner = self.inner();
        inner.clock += 1;
        let op = Op {
            client,
            at: String::new(),
            outcome: match call {
                Call::Put { .. } | Call::Transfer { .. } | Call::Append { .. } => Outcome::Unknown,
                Call::Get { .. } | Call::Snapshot { .. } | Call::Lists { .. } => Outcome::None,
            },
            call,
            begun: inner.clock,
            ended: None,
            tries: 0,
            replays: 0,
        };
        inner.ops.push(op);
        inner.ops.len() - 1
    }

    /// Changes what is known of a call.
    pub fn update(&self, number: usize, change: impl FnOnce(&mut Op)) {
        change(&mut self.inner().ops[number]);
    }

    /// A call ends.
    pub fn end(&self, number: usize, outcome: Outcome) {
        let mut inner = self.inner();
        inner.clock += 1;
        let now = inner.clock;
        let op = &mut inner.ops[number];
        op.ended = Some(now);
        op.outcome = outcome;
    }

    /// All calls so far.
    pub fn ops(&self) -> Vec<Op> {
        self.inner().ops.clone()
    }
}
