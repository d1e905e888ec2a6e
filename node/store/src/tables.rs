//! All tables and keys of both files on one screen. Both files begin with a format: a file of
//! another format is refused before anything is written to it.

use flower_engine::Space;
use redb::TableDefinition;

/// Format of `raft.redb` and of `state.redb`.
pub(crate) const FORMAT: u64 = 2;
/// The format before, which is carried over when a file is opened.
pub(crate) const OLD_FORMAT: u64 = 1;

/// Bytes by bytes.
pub(crate) type ByteTable = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// In both files: what the store itself keeps, by the names of [`own`]. Not replicated.
pub(crate) const OWN: ByteTable = TableDefinition::new("own");

/// In `raft.redb`: encoded records by index.
pub(crate) const LOG: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("log");

/// In `state.redb`: the table of a replicated space.
pub(crate) const fn of_space(space: Space) -> ByteTable {
    TableDefinition::new(space.name())
}

/// Keys of [`OWN`].
pub(crate) mod own {
    /// Both files: `FORMAT`, u64 big endian. Never moves, in any format.
    pub(crate) const FORMAT: &[u8] = b"format";
    /// `raft.redb`: the vote, bytes of the consensus module.
    pub(crate) const VOTE: &[u8] = b"vote";
    /// `raft.redb`: last entry known to be committed, bytes of the consensus module.
    pub(crate) const COMMITTED: &[u8] = b"committed";
    /// `raft.redb`: position of the last purged record, postcard.
    pub(crate) const PURGED: &[u8] = b"purged";
    /// `raft.redb`: bytes of all records in the file, u64 big endian.
    pub(crate) const BYTES: &[u8] = b"bytes";
    /// `state.redb`: `view::Standing`, postcard.
    pub(crate) const STANDING: &[u8] = b"standing";
    /// `state.redb`: position and bytes of the configuration, postcard.
    pub(crate) const MEMBERSHIP: &[u8] = b"membership";
}
