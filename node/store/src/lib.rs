//! Storage on disk: the only crate that names redb. Synchronous and threadless: writers take
//! `&mut self`, readers are snapshots. Two files: `raft.redb` (the log, one durable commit a
//! flush) and `state.redb` (what was applied; durable at checkpoints only, which wait for the
//! log). No clock, no tokio, no openraft here.

mod backend;
#[cfg(feature = "sim")]
pub mod contract;
pub mod data_dir;
pub mod disk;
pub mod error;
#[cfg(feature = "sim")]
pub mod fuzz;
pub mod image;
pub mod log;
pub mod record;
pub mod recovery;
pub mod sabotage;
#[cfg(feature = "sim")]
pub mod sim_disk;
pub mod state;
mod tables;
mod upgrade;
mod value_cache;
mod view;

pub use data_dir::{
    AdoptError, DataDir, DirReport, DirSettings, Identity, OpenDir, Opened, is_opening,
};
pub use disk::{Disk, DiskSpace, FileName, RealDisk};
pub use error::{Fatal, OpenError};
pub use image::{ImageError, ImageReader, Received, Receiving, Verified};
pub use log::{Bounds, Flushed, Log, LogReader, LogStats};
pub use record::{BadRecord, LogPosition, LogRecord, Payload};
pub use recovery::Accepted;
#[cfg(feature = "sim")]
pub use sim_disk::SimDisk;
pub use state::{Applied, Checkpointed, OpenReport, PageCacheStats, State, StateStats};
pub use value_cache::ValueCacheStats;
pub use view::{StateView, Totals, Views};
