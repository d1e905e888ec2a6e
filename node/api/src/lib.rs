//! Types that nodes, operator and tools share: identities, the wire API, the admin API, the
//! split of memory, limits and manifests. No I/O and no tokio here.

pub mod admin;
pub mod explain;
pub mod export;
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod ports;
pub mod report;
pub mod sizing;
pub mod tokens;
pub mod transport;
pub mod watch;
pub mod wire;

pub use ids::{ClusterId, GroupId, MemberId, PartitionId, Revision};
