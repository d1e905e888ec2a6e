//! What one evaluation may use, and what it did use. Plain numbers: whoever has a clock sets
//! the flag of the [`Deadline`]; nothing here measures time.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use flower_api::{Revision, limits};

/// Names of the settings behind the limits, as errors give them.
pub mod setting {
    macro_rules! settings {
        ($($name:ident = $text:literal,)*) => {
            $(#[allow(missing_docs)] pub const $name: &str = $text;)*
            /// All of them; each must be a setting of the node.
            pub const ALL: &[&str] = &[$($text),*];
        };
    }
    settings! {
        HEAP = "FLOWER_LIMIT_HEAP",
        GAS = "FLOWER_LIMIT_GAS",
        WALL_MS = "FLOWER_LIMIT_WALL_MS",
        ARGS = "FLOWER_LIMIT_ARGS",
        RESULT = "FLOWER_LIMIT_RESULT",
        RECORD = "FLOWER_LIMIT_RECORD",
        BUNDLE = "FLOWER_LIMIT_BUNDLE",
        ROWS_READ = "FLOWER_LIMIT_ROWS_READ",
        BYTES_READ = "FLOWER_LIMIT_BYTES_READ",
        ROWS_WRITTEN = "FLOWER_LIMIT_ROWS_WRITTEN",
        BYTES_WRITTEN = "FLOWER_LIMIT_BYTES_WRITTEN",
        RANGES = "FLOWER_LIMIT_RANGES",
        CELLS = "FLOWER_LIMIT_CELLS",
        BUILD_WALL_MS = "FLOWER_LIMIT_BUILD_WALL_MS",
        BUILD_GAS = "FLOWER_LIMIT_BUILD_GAS",
        BUILD_ROWS_READ = "FLOWER_LIMIT_BUILD_ROWS_READ",
        BUILD_BYTES_READ = "FLOWER_LIMIT_BUILD_BYTES_READ",
        BUILD_BYTES_WRITTEN = "FLOWER_LIMIT_BUILD_BYTES_WRITTEN",
        BUILD_RANGES = "FLOWER_LIMIT_BUILD_RANGES",
        BUILD_CELLS = "FLOWER_LIMIT_BUILD_CELLS",
    }
}

/// Bounds of one evaluation. Bytes unless named otherwise; each is a node setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// JavaScript heap of an isolate.
    pub heap_bytes: u64,
    /// JavaScript stack; the thread's own must be at least four times as large.
    pub stack_bytes: u64,
    /// Interrupts, each about 10,000 operations.
    pub gas: u64,
    /// Wall time in milliseconds; enforced through the [`Deadline`].
    pub wall_ms: u64,
    /// Arguments as JSON.
    pub args_bytes: u64,
    /// Result as JSON.
    pub result_bytes: u64,
    /// One row as JSON.
    pub record_bytes: u64,
    /// Rows read, index entries walked included.
    pub rows_read: u64,
    /// Bytes of keys and rows read.
    pub bytes_read: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Bytes of the patch.
    pub patch_bytes: u64,
    /// Ranges opened.
    pub ranges: u64,
    /// Evaluations of derived values.
    pub cells: u64,
    /// What takes the place of these where values are made for the first time.
    pub build: BuildLimits,
    /// Set in the limits of a build: the gas of a call.
    pub call_gas: Option<u64>,
}

/// Bounds of one page of a build, or of an import. What a value needs that is kept up to date
/// change by change can be far less than what it takes to make it, with all that it reads, for
/// the first time; so these are larger than those of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BuildLimits {
    pub wall_ms: u64,
    pub gas: u64,
    pub rows_read: u64,
    pub bytes_read: u64,
    pub patch_bytes: u64,
    pub ranges: u64,
    pub cells: u64,
}

impl Limits {
    /// Gas of one evaluation of a derived value. Less than the call's, so that a function
    /// that loops fails in the same way wherever it runs, and what reads it goes on. The same
    /// in a build, or a value could be built that no mutation can keep up to date.
    pub fn cell_gas(&self) -> u64 {
        (self.call_gas.unwrap_or(self.gas) / 10).max(1)
    }

    /// The limits of a build, none of which is lower than that of a call.
    #[must_use]
    pub fn for_build(&self) -> Self {
        let build = &self.build;
        Self {
            wall_ms: build.wall_ms.max(self.wall_ms),
            gas: build.gas.max(self.gas),
            rows_read: build.rows_read.max(self.rows_read),
            bytes_read: build.bytes_read.max(self.bytes_read),
            patch_bytes: build.patch_bytes.max(self.patch_bytes),
            ranges: build.ranges.max(self.ranges),
            cells: build.cells.max(self.cells),
            call_gas: Some(self.gas),
            ..*self
        }
    }

    /// The setting that raises a limit, given the one that does so for a call.
    pub fn named(&self, of_calls: &'static str) -> &'static str {
        if self.call_gas.is_none() {
            return of_calls;
        }
        match of_calls {
            setting::WALL_MS => setting::BUILD_WALL_MS,
            setting::GAS => setting::BUILD_GAS,
            setting::ROWS_READ => setting::BUILD_ROWS_READ,
            setting::BYTES_READ => setting::BUILD_BYTES_READ,
            setting::BYTES_WRITTEN => setting::BUILD_BYTES_WRITTEN,
            setting::RANGES => setting::BUILD_RANGES,
            setting::CELLS => setting::BUILD_CELLS,
            same => same,
        }
    }
}

impl Default for BuildLimits {
    fn default() -> Self {
        Self {
            wall_ms: limits::BUILD_WALL_MS,
            gas: limits::BUILD_GAS,
            rows_read: limits::BUILD_ROWS_READ,
            bytes_read: limits::BUILD_BYTES_READ,
            patch_bytes: limits::BUILD_PATCH_BYTES,
            ranges: limits::BUILD_RANGES,
            cells: limits::BUILD_CELLS,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            heap_bytes: limits::HEAP_BYTES,
            stack_bytes: limits::STACK_BYTES,
            gas: limits::GAS,
            wall_ms: limits::WALL_MS,
            args_bytes: limits::ARGS_BYTES,
            result_bytes: limits::RESULT_BYTES,
            record_bytes: limits::RECORD_BYTES,
            rows_read: limits::ROWS_READ,
            bytes_read: limits::BYTES_READ,
            rows_written: limits::ROWS_WRITTEN,
            patch_bytes: limits::PATCH_BYTES,
            ranges: limits::RANGES,
            cells: limits::CELLS,
            build: BuildLimits::default(),
            call_gas: None,
        }
    }
}

/// The end of an evaluation's time: a flag that the node sets when the wall limit has passed.
/// The script is stopped at its next interrupt or large allocation after that.
#[derive(Debug, Clone, Default)]
pub struct Deadline(Arc<AtomicBool>);

impl Deadline {
    /// A deadline that passes when `flag` is set.
    pub fn new(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
    /// One that never passes; gas alone bounds the evaluation.
    pub fn never() -> Self {
        Self::default()
    }
    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Time and randomness of one evaluation, drawn at admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// `now` of the evaluation, milliseconds since 1970.
    pub now_ms: u64,
    /// The revision that a mutation writes; of a query, the one that it reads at.
    pub revision: Revision,
    /// Seed of `tx.random()` and `tx.uuid()`.
    pub seed: u64,
}

/// What an evaluation used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Rows read and index entries walked.
    pub rows_read: u64,
    /// Bytes of keys and rows read.
    pub bytes_read: u64,
    /// Rows inserted, changed or deleted.
    pub rows_written: u64,
    /// Ranges opened.
    pub ranges: u64,
    /// Evaluations of derived values.
    pub cells: u64,
    /// Height of the highest stored cell that got a new height or value; 0 without one.
    pub height: u64,
    /// Readers of windows over several values of an index's first field that were looked at:
    /// the one part of maintenance that grows with the number of such readers.
    pub spans: u64,
    /// Interrupts, each about 10,000 operations.
    pub gas: u64,
}
