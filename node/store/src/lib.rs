//! Storage on disk: the only crate that names redb. Synchronous and threadless.
