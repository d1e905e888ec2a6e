//! The engine: records, indexes, JavaScript; pure over a [`View`]. Time and randomness are
//! arguments. No clock, no tokio, no redb, no openraft here.

pub mod entry;
pub mod error;
pub mod key;
pub mod view;

pub use entry::{Entry, EntryKind};
pub use error::ViewError;
pub use key::Space;
pub use view::{Direction, Overlay, Patch, PatchBuilder, View, Write};
