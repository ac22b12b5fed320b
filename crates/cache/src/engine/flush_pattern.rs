//! Whether the application flushes after every single change, as databases and journals do: then a change that is
//! durable when it is answered (forced unit access) spares its flush the way to the volume.

/// Changes in a row, each followed by its flush, after which the next one is taken to be followed by one, too.
const ENOUGH: u32 = 3;

/// What the application has done lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlushPattern {
    changes_since_flush: u32,
    streak: u32,
}

impl FlushPattern {
    /// A change comes. Whether a flush will follow it before any other.
    pub fn change(&mut self) -> bool {
        self.changes_since_flush = self.changes_since_flush.saturating_add(1);
        self.changes_since_flush == 1 && self.streak >= ENOUGH
    }

    /// A flush comes.
    pub fn flush(&mut self) {
        match std::mem::take(&mut self.changes_since_flush) {
            0 => {}
            1 => self.streak = (self.streak + 1).min(ENOUGH),
            _ => self.streak = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_changes_with_their_flushes_make_a_pattern_and_one_without_ends_it() {
        let mut flush_pattern = FlushPattern::default();
        for round in 0..6 {
            assert_eq!(flush_pattern.change(), round >= ENOUGH);
            flush_pattern.flush();
            flush_pattern.flush();
        }
        assert!(flush_pattern.change() && !flush_pattern.change());
        flush_pattern.flush();
        assert!(!flush_pattern.change());
    }
}
