//! Device names: an attachment has one, although NVMe disks do not show it, and no two of an instance have the same.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The letters of the names that AWS recommends for volumes of any machine: `/dev/xvdba` to `/dev/xvdcz`.
const FIRST: [u8; 2] = *b"bc";
/// How many there are.
const COUNT: usize = FIRST.len() * 26;

/// Walks the names, so that one that was used a moment ago is not used again at once: such attachments hang at times.
#[derive(Debug, Default)]
pub struct Names(Mutex<Walk>);

#[derive(Debug, Default)]
struct Walk {
    next: usize,
    /// Those under which an attachment has hung, or that something else has.
    bad: BTreeSet<String>,
}

fn name(number: usize) -> String {
    let (first, second) = (FIRST[number / 26 % FIRST.len()], b'a' + u8::try_from(number % 26).unwrap_or_default());
    format!("/dev/xvd{}{}", char::from(first), char::from(second))
}

impl Names {
    /// The next one that is not known to be bad. When all are, they are tried anew.
    pub fn next(&self) -> String {
        let mut walk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if walk.bad.len() >= COUNT {
            walk.bad.clear();
        }
        loop {
            let name = name(walk.next);
            walk.next = (walk.next + 1) % COUNT;
            if !walk.bad.contains(&name) {
                return name;
            }
        }
    }

    /// Leaves a name out from now on: an attachment under it has hung, or something else has it.
    pub fn avoid(&self, name: &str) {
        let mut walk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Other names are not ours to avoid.
        if (0..COUNT).any(|number| self::name(number) == name) {
            walk.bad.insert(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_walked_and_bad_ones_are_left_out_until_all_are() {
        let names = Names::default();
        assert_eq!((names.next(), names.next()), ("/dev/xvdba".to_owned(), "/dev/xvdbb".to_owned()));
        names.avoid("/dev/xvdbc");
        names.avoid("/dev/sda1");
        assert_eq!(names.next(), "/dev/xvdbd");
        let rest: Vec<String> = (0..COUNT - 4).map(|_| names.next()).collect();
        assert_eq!(rest.last().unwrap(), "/dev/xvdcz");
        assert_eq!(names.next(), "/dev/xvdba", "and so on");
        for number in 0..COUNT {
            names.avoid(&name(number));
        }
        assert_eq!(names.next(), "/dev/xvdbb");
    }
}
