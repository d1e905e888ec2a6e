//! The process's clock and randomness, taken over for threads that run a simulated world:
//! libraries that ask the system (hashers, hyper's `date` header, QuickJS) get answers that
//! follow from the seed. Other threads get the system's. Not for shipped programs.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use rand::{RngCore, SeedableRng, rngs::StdRng};

/// Seconds since 1970 at which simulated worlds begin.
pub const BEGINNING_S: u64 = 1_700_000_000;

thread_local! {
    static RNG: RefCell<Option<StdRng>> = const { RefCell::new(None) };
    static NOW: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Runs `work` on a new thread on which the system's clock stands where [`set_clock`] put it
/// and its randomness follows from `seed`. A panic there goes on here.
pub fn with_seed<T: Send>(seed: u64, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = move || {
            RNG.set(Some(StdRng::seed_from_u64(seed)));
            set_clock(Duration::ZERO);
            work()
        };
        let thread = std::thread::Builder::new()
            .name("world".into())
            .stack_size(16 << 20)
            .spawn_scoped(scope, run)
            .expect("a thread starts");
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Puts this thread's system clock to so long after the world's beginning.
pub fn set_clock(elapsed: Duration) {
    NOW.set(Some(elapsed));
}

/// This thread's clock: time since the world's beginning; zero outside of one.
pub fn clock() -> Duration {
    NOW.get().unwrap_or_default()
}

fn fill(bytes: &mut [u8]) -> bool {
    // A thread that ends has no generator any more.
    let filled = RNG.try_with(|rng| {
        let Ok(mut rng) = rng.try_borrow_mut() else {
            return false;
        };
        rng.as_mut().map(|rng| rng.fill_bytes(bytes)).is_some()
    });
    filled.unwrap_or(false)
}

/// The C library's `getrandom`: seeded on threads of a world, the system's elsewhere.
///
/// # Safety
/// As the system call: `buffer` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if !buffer.is_null() && length <= isize::MAX as usize {
        // SAFETY: the caller promises `length` writable bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        if fill(bytes) {
            return length as libc::ssize_t;
        }
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as libc::ssize_t }
}

/// The C library's `clock_gettime`: the world's time on threads of one, the system's elsewhere.
///
/// # Safety
/// As the system call: `time` is null or points to a `timespec`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> libc::c_int {
    let now = NOW.try_with(Cell::get).ok().flatten();
    if let Some(elapsed) = now
        && !time.is_null()
        && matches!(
            clock,
            libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC | libc::CLOCK_REALTIME_COARSE
        )
    {
        let told = libc::timespec {
            tv_sec: (BEGINNING_S + elapsed.as_secs()) as libc::time_t,
            tv_nsec: elapsed.subsec_nanos().into(),
        };
        // SAFETY: the caller promises a `timespec` there.
        unsafe { time.write(told) };
        return 0;
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::SystemTime};

    use super::*;

    /// What the standard library's hasher and clock say.
    fn told() -> (Vec<u32>, SystemTime) {
        let set: HashSet<u32> = (0..100).collect();
        (set.into_iter().collect(), SystemTime::now())
    }

    #[test]
    fn a_seed_decides_what_libraries_are_told() {
        let (order, time) = with_seed(1, told);
        assert_eq!((order.clone(), time), with_seed(1, told));
        assert_ne!(order, with_seed(2, told).0);
        assert_eq!(
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap(),
            Duration::from_secs(BEGINNING_S)
        );
        assert_ne!(time, SystemTime::now(), "other threads have the system's");
    }
}
