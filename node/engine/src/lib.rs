//! The engine: records, indexes, JavaScript; pure over a [`View`]. Time and randomness are
//! arguments. No clock, no tokio, no redb, no openraft here.

mod codec;
mod cursor;
pub mod deploy;
pub mod derived;
pub mod entry;
pub mod error;
pub mod explain;
pub mod export;
pub mod import;
pub mod js;
pub mod key;
pub mod lane;
pub mod limits;
mod problem;
mod range;
pub mod reads;
pub mod receipt;
mod record;
mod transaction;
mod types;
pub mod view;

pub use deploy::{DeployError, Deployment, PlannedDeployment};
pub use entry::{Entry, EntryKind};
pub use error::ViewError;
pub use js::{BundleError, CallError, Cost, Deadline, Evaluated, Isolate, Limits, Stamp, inspect};
pub use key::Space;
pub use reads::{ReadSet, ReadSetBuilder, Window};
pub use view::{Direction, Overlay, Patch, PatchBuilder, View, Write};
