//! The engine: records, indexes, JavaScript; pure over a view. No clock, no tokio, no redb, no openraft here.
