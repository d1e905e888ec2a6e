//! What nodes log and how programs panic, kept for the story of a failure. Nothing is decided
//! by it, and none of it is part of the audit's hash.

use std::{
    cell::RefCell,
    io::{self, Write},
    sync::Once,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use crate::audit::Audit;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Until the guard is dropped, this thread's log lines go into the audit's events.
pub fn logs(audit: &Audit, aloud: bool) -> tracing::subscriber::DefaultGuard {
    static HOOK: Once = Once::new();
    HOOK.call_once(quiet_panics);
    let filter = if aloud {
        "info,openraft=warn"
    } else {
        "warn,openraft=off,flower_node=info"
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(Lines {
            audit: audit.clone(),
            aloud,
        })
        .finish();
    tracing::subscriber::set_default(subscriber)
}

/// Panics of worlds are kept, not printed: many of them are expected of a broken one.
fn quiet_panics() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() == Some("world") {
            // Opening a damaged file may panic: that is caught, and is no failure.
            if flower_store::is_opening() {
                return;
            }
            // The first one: what follows follows from it.
            let text = info.to_string();
            PANIC.with_borrow_mut(|kept| {
                if kept.is_empty() {
                    *kept = text;
                }
            });
        } else {
            loud(info);
        }
    }));
}

/// How this thread's world has panicked.
pub fn last_panic() -> String {
    PANIC.take()
}

#[derive(Clone)]
struct Lines {
    audit: Audit,
    aloud: bool,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        if self.aloud {
            eprint!("{:>10.3} {text}", crate::audit::now().as_secs_f64());
        }
        self.audit.note(text.trim_end());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
