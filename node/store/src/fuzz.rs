//! For tests of decoders: arbitrary bytes, and valid ones that were damaged, many of them with
//! their checksum mended, so that what lies behind the checksum is reached too. Counted, because
//! a test whose inputs all fail at the first byte shows nothing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How far a decoder came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// It refused format, length or checksum.
    Header,
    /// It refused something behind them.
    Body,
    /// It took all.
    Whole,
}

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Arbitrary bytes.
    pub arbitrary: u32,
    /// Damaged valid ones.
    pub damaged: u32,
    /// Of these, so many came past the header.
    pub past_header: u32,
    /// And so many were taken.
    pub taken: u32,
}

impl Tally {
    /// At least one damaged input in ten must come past the header.
    ///
    /// # Panics
    /// When fewer did.
    pub fn must_be_deep(&self) {
        assert!(
            self.past_header * 10 >= self.damaged && self.damaged > 0,
            "too few inputs came past the header: {self:?}"
        );
    }
}

/// Numbers from a seed, the same everywhere.
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        // Ends of ranges are met more often than chance would have them.
        match self.below(4) {
            0 => [0, 1, 0x7f, 0x80, 0xfe, 0xff][self.below(6)],
            _ => self.number() as u8,
        }
    }

    /// Arbitrary bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        let length = self.below(300);
        (0..length).map(|_| self.byte()).collect()
    }

    /// Damages `bytes` at one to four places.
    pub fn damage(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let upto = at + self.below(bytes.len() - at);
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.byte(),
                2 => bytes.truncate(at),
                3 => {
                    bytes.drain(at..upto);
                }
                4 => {
                    let again = bytes[at..upto].to_vec();
                    bytes.splice(at..at, again);
                }
                5 => {
                    let more = self.bytes();
                    bytes.splice(at..at, more);
                }
                _ => {
                    let other = &others[self.below(others.len())];
                    let from = self.below(other.len());
                    bytes.splice(at..upto, other[from..].iter().copied());
                }
            }
        }
    }
}

/// Tries `decode` with `count` arbitrary inputs and as many damaged ones of `valid`; `mend` makes
/// format and checksum of half of these right again. A panic tells its input.
pub fn fuzz(
    seed: u64,
    valid: &[Vec<u8>],
    count: u32,
    mend: impl Fn(&mut Vec<u8>),
    decode: impl Fn(&[u8]) -> Depth,
) -> Tally {
    let mut dice = Dice::new(seed);
    let mut tally = Tally::default();
    let attempt = |bytes: &[u8]| {
        catch_unwind(AssertUnwindSafe(|| decode(bytes))).unwrap_or_else(|panic| {
            eprintln!("seed {seed}, this input made the decoder panic: {bytes:02x?}");
            resume_unwind(panic)
        })
    };
    for one in valid {
        assert_eq!(attempt(one), Depth::Whole, "a valid input is not taken");
    }
    for _ in 0..count {
        attempt(&dice.bytes());
        tally.arbitrary += 1;
        let mut bytes = valid[dice.below(valid.len())].clone();
        dice.damage(&mut bytes, valid);
        if dice.below(2) == 0 {
            mend(&mut bytes);
        }
        let depth = attempt(&bytes);
        tally.damaged += 1;
        tally.past_header += u32::from(depth > Depth::Header);
        tally.taken += u32::from(depth == Depth::Whole);
    }
    tally
}
