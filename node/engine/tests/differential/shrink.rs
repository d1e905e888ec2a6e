//! Makes a failing case smaller: fewer calls, then fewer operations in each, then fewer
//! statements and derived values. What is left fails too, though perhaps in another way.

use crate::case::Case;

/// Tries at most.
const TRIES: u32 = 400;

struct Shrinker {
    case: Case,
    why: String,
    tries: u32,
}

/// The smallest failing case that was found, and why it fails.
pub fn shrink(case: Case, why: String) -> (Case, String) {
    let mut shrinker = Shrinker {
        case,
        why,
        tries: TRIES,
    };
    loop {
        let before = shrinker.size();
        shrinker.steps();
        shrinker.operations();
        shrinker.definitions();
        if shrinker.size() == before || shrinker.tries == 0 {
            return (shrinker.case, shrinker.why);
        }
    }
}

impl Shrinker {
    fn size(&self) -> usize {
        let ops: usize = self.case.steps.iter().map(|step| 1 + step.ops.len()).sum();
        let body: usize = self.case.app.derived.iter().map(|d| d.body.len()).sum();
        ops + body
    }

    /// Keeps a change when what is left still fails.
    fn try_without(&mut self, change: impl FnOnce(&mut Case)) -> bool {
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let mut smaller = self.case.clone();
        change(&mut smaller);
        match smaller.play() {
            Ok(_) => false,
            Err(why) => {
                (self.case, self.why) = (smaller, why);
                true
            }
        }
    }

    /// Halves first: whole runs of calls are often of no account.
    fn steps(&mut self) {
        let mut size = self.case.steps.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < self.case.steps.len() {
                let end = (at + size).min(self.case.steps.len());
                if !self.try_without(|case| drop(case.steps.drain(at..end))) {
                    at = end;
                }
            }
            size /= 2;
        }
    }

    fn operations(&mut self) {
        for step in (0..self.case.steps.len()).rev() {
            for op in (0..self.case.steps[step].ops.len()).rev() {
                self.try_without(|case| drop(case.steps[step].ops.remove(op)));
            }
        }
    }

    fn definitions(&mut self) {
        for derived in (0..self.case.app.derived.len()).rev() {
            // A name stays: others may read it, and calls may.
            self.try_without(|case| case.app.derived[derived].body.clear());
            for statement in (0..self.case.app.derived[derived].body.len()).rev() {
                self.try_without(|case| drop(case.app.derived[derived].body.remove(statement)));
            }
        }
    }
}
