//! Every bound in one place, related to each other at compile time. Bytes unless named
//! otherwise. Those that are settable are defaults of the node setting named beside them.

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// Arguments of a call (`FLOWER_LIMIT_ARGS`).
pub const ARGS_BYTES: u64 = MIB;
/// Result of a call (`FLOWER_LIMIT_RESULT`).
pub const RESULT_BYTES: u64 = 8 * MIB;
/// A larger result is not kept in the receipt; the receipt says so.
pub const RECEIPT_RESULT_BYTES: u64 = 64 * KIB;
/// One record (`FLOWER_LIMIT_RECORD`). redb copies large values with their neighbours.
pub const RECORD_BYTES: u64 = 256 * KIB;
/// Encoded index or record key.
pub const KEY_BYTES: u64 = 4 * KIB;
/// A bundle (`FLOWER_LIMIT_BUNDLE`).
pub const BUNDLE_BYTES: u64 = 8 * MIB;
/// A bundle that fits a ConfigMap.
pub const CONFIG_MAP_BUNDLE_BYTES: u64 = 900 * KIB;
/// Rows read by one call (`FLOWER_LIMIT_ROWS_READ`).
pub const ROWS_READ: u64 = 32_000;
/// Rows written by one mutation (`FLOWER_LIMIT_ROWS_WRITTEN`).
pub const ROWS_WRITTEN: u64 = 16_000;
/// Bytes read by one call (`FLOWER_LIMIT_BYTES_READ`).
pub const BYTES_READ: u64 = 16 * MIB;
/// Bytes of one mutation's patch (`FLOWER_LIMIT_BYTES_WRITTEN`).
pub const PATCH_BYTES: u64 = 16 * MIB;
/// Ranges opened by one call (`FLOWER_LIMIT_RANGES`).
pub const RANGES: u64 = 4_096;
/// Derived values evaluated by one call (`FLOWER_LIMIT_CELLS`).
pub const CELLS: u64 = 10_000;
/// Longest path of derived values that read each other.
pub const HEIGHT: usize = 128;
/// Fields of the key of a derived value.
pub const KEY_FIELDS: usize = 8;
/// A batch (one log entry) is closed at this size.
pub const BATCH_BYTES: u64 = MIB;
/// A frame between peers or of an image.
pub const FRAME_BYTES: u64 = MIB;
/// Largest message between peers: one entry may hold one patch over the batch size.
pub const PEER_MESSAGE_BYTES: u64 = 64 * MIB;
/// JavaScript heap of a worker (`FLOWER_LIMIT_HEAP`).
pub const HEAP_BYTES: u64 = 32 * MIB;
/// JavaScript stack.
pub const STACK_BYTES: u64 = 256 * KIB;
/// Wall time of one evaluation in milliseconds (`FLOWER_LIMIT_WALL_MS`).
pub const WALL_MS: u64 = 1_000;
/// Interrupts (each about 10,000 operations) of one evaluation (`FLOWER_LIMIT_GAS`).
pub const GAS: u64 = 20_000;
/// Wall time of one page of a build in milliseconds (`FLOWER_LIMIT_BUILD_WALL_MS`).
pub const BUILD_WALL_MS: u64 = 10 * WALL_MS;
/// Interrupts of one page of a build (`FLOWER_LIMIT_BUILD_GAS`).
pub const BUILD_GAS: u64 = 10 * GAS;
/// Rows read by one page of a build (`FLOWER_LIMIT_BUILD_ROWS_READ`).
pub const BUILD_ROWS_READ: u64 = 1_000_000;
/// Bytes read by one page of a build (`FLOWER_LIMIT_BUILD_BYTES_READ`).
pub const BUILD_BYTES_READ: u64 = 256 * MIB;
/// Bytes of the patch of one page of a build (`FLOWER_LIMIT_BUILD_BYTES_WRITTEN`).
pub const BUILD_PATCH_BYTES: u64 = 2 * PATCH_BYTES;
/// Ranges opened by one page of a build (`FLOWER_LIMIT_BUILD_RANGES`).
pub const BUILD_RANGES: u64 = 100_000;
/// Derived values evaluated by one page of a build (`FLOWER_LIMIT_BUILD_CELLS`).
pub const BUILD_CELLS: u64 = 100_000;
/// Indexes of a table.
pub const INDEXES: usize = 32;
/// Fields of an index.
pub const INDEX_FIELDS: usize = 16;
/// Tables of an application.
pub const TABLES: usize = 1_000;
/// Mutations queued at the sequencer (`FLOWER_LIMIT_QUEUE`); more is 429.
pub const QUEUE: usize = 1_024;
/// Idempotency key, characters.
pub const KEY_CHARS: usize = 255;
/// How long receipts are kept by default, in milliseconds (24 h).
pub const RECEIPT_RETENTION_MS: u64 = 24 * 3_600 * 1_000;
/// Announce a snapshot and purge the log after so many bytes (`FLOWER_SNAPSHOT_AFTER_LOG_BYTES`).
pub const SNAPSHOT_AFTER_LOG_BYTES: u64 = 16 * MIB;
/// A durable checkpoint after so many applied bytes …
pub const CHECKPOINT_BYTES: u64 = 4 * MIB;
/// … or so many milliseconds, whichever comes first.
pub const CHECKPOINT_MS: u64 = 1_000;
/// Keys written lately that a node keeps in memory, when no memory limit is split
/// (`FLOWER_RECENT_WRITES_BYTES`).
pub const RECENT_BYTES: u64 = 8 * MIB;
/// Results of queries that a node keeps likewise (`FLOWER_QUERY_CACHE_BYTES`).
pub const QUERY_CACHE_BYTES: u64 = 16 * MIB;
/// Queries of one watch (`FLOWER_LIMIT_WATCH_QUERIES`).
pub const WATCH_QUERIES: u64 = 1_000;
/// Watches that a node serves at a time (`FLOWER_LIMIT_WATCHES`).
pub const WATCHES: u64 = 1_024;
/// Values of one step of a watch (`FLOWER_LIMIT_WATCH_STEP`).
pub const WATCH_STEP_BYTES: u64 = 8 * MIB;
/// Watches that may be opened in a second (`FLOWER_LIMIT_WATCH_OPENS`).
pub const WATCH_OPENS: u64 = 100;
/// A watch without news says so this often, milliseconds (`FLOWER_WATCH_HEARTBEAT_MS`).
pub const WATCH_HEARTBEAT_MS: u64 = 10_000;
/// A client that takes nothing of what waits for it for so long is let go, milliseconds
/// (`FLOWER_CLIENT_STALL_MS`).
pub const CLIENT_STALL_MS: u64 = 30_000;
/// Ready while at most this far behind the last commit heard of, milliseconds.
pub const READY_LAG_MS: u64 = 5_000;
/// Free space below max(this, `RESERVE_PERCENT`) refuses mutations.
pub const RESERVE_BYTES: u64 = 64 * MIB;
/// See `RESERVE_BYTES`.
pub const RESERVE_PERCENT: u64 = 5;

const _: () = assert!(RECORD_BYTES < FRAME_BYTES, "a record fits a frame");
const _: () = assert!(FRAME_BYTES <= PEER_MESSAGE_BYTES);
const _: () = assert!(
    BUILD_PATCH_BYTES + BATCH_BYTES < PEER_MESSAGE_BYTES,
    "any entry can be sent"
);
const _: () = assert!(PATCH_BYTES <= BUILD_PATCH_BYTES);
const _: () = assert!(RECEIPT_RESULT_BYTES < RECORD_BYTES, "a receipt is a record");
const _: () = assert!(CONFIG_MAP_BUNDLE_BYTES < BUNDLE_BYTES);

/// The reserve for a file system of `capacity` bytes.
pub fn reserve(capacity: u64) -> u64 {
    RESERVE_BYTES.max(capacity / 100 * RESERVE_PERCENT)
}
