//! Types that nodes, operator and tools share. No I/O and no tokio here.
