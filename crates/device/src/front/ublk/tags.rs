//! The tags of a queue: who has each, the driver or we, and what is to be answered next.

/// What a completion of the driver means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The tag has a request for us.
    Request,
    /// The device is being stopped: the tag brings nothing any more.
    Gone,
    /// The driver refused what we asked for (errno, positive), or speaks of a tag that it does not have.
    Broken(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagState {
    /// The driver has it and brings the next request.
    Driver,
    /// We have its request.
    Taken,
    /// Its answer waits for the next submission.
    Answered,
    Gone,
}

/// An answer that goes to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TagAnswer {
    pub(super) tag: u16,
    /// Bytes moved, or a negative errno.
    pub(super) result: i32,
}

/// All tags of a queue. Allocates nothing once it is made.
#[derive(Debug)]
pub(super) struct Tags {
    states: Box<[TagState]>,
    answers: Vec<TagAnswer>,
}

impl Tags {
    /// `depth` tags, all of them with the driver.
    pub(super) fn new(depth: u16) -> Self {
        let depth = usize::from(depth);
        Self { states: vec![TagState::Driver; depth].into(), answers: Vec::with_capacity(depth) }
    }

    /// The driver completed a tag's command.
    pub(super) fn arrived(&mut self, tag: u16, result: i32) -> Arrival {
        match (self.states.get_mut(usize::from(tag)), result) {
            (Some(state @ TagState::Driver), 0) => {
                *state = TagState::Taken;
                Arrival::Request
            }
            (Some(state @ TagState::Driver), error) if error < 0 => {
                *state = TagState::Gone;
                if error == -libc::ENODEV { Arrival::Gone } else { Arrival::Broken(-error) }
            }
            _ => Arrival::Broken(libc::EPROTO),
        }
    }

    /// We have answered a tag's request. False if there was none.
    pub(super) fn answer(&mut self, tag: u16, result: i32) -> bool {
        match self.states.get_mut(usize::from(tag)) {
            Some(state @ TagState::Taken) => {
                *state = TagState::Answered;
                self.answers.push(TagAnswer { tag, result });
                true
            }
            _ => false,
        }
    }

    /// Whether answers wait.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The next answer to submit; its tag is the driver's again.
    pub(super) fn next_answer(&mut self) -> Option<TagAnswer> {
        let answer = self.answers.pop()?;
        self.states[usize::from(answer.tag)] = TagState::Driver;
        Some(answer)
    }

    /// The last answer could not be submitted: it waits again.
    pub(super) fn put_back(&mut self, answer: TagAnswer) {
        self.states[usize::from(answer.tag)] = TagState::Answered;
        self.answers.push(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Arrived(u16, i32),
        Answer(u16, i32),
        Submit,
        PutBack,
    }

    fn any_op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u16..6, prop::sample::select(vec![0, 0, 0, 1, -libc::ENODEV, -libc::EINVAL]))
                .prop_map(|(tag, result)| Op::Arrived(tag, result)),
            4 => (0u16..6, any::<i32>()).prop_map(|(tag, result)| Op::Answer(tag, result)),
            3 => Just(Op::Submit),
            1 => Just(Op::PutBack),
        ]
    }

    proptest! {
        /// Against a naive model: every request is answered once, with its own result, and only then comes another.
        #[test]
        fn every_request_is_answered_once(ops in prop::collection::vec(any_op(), 0..200)) {
            const DEPTH: u16 = 4;
            let mut tags = Tags::new(DEPTH);
            let (mut with_driver, mut gone) = ((0..DEPTH).collect::<Vec<_>>(), Vec::new());
            let (mut taken, mut answered) = (Vec::new(), BTreeMap::new());
            for op in ops {
                match op {
                    Op::Arrived(tag, result) => {
                        let was_there = with_driver.contains(&tag);
                        let expected = match result {
                            0 if was_there => Arrival::Request,
                            error if error < 0 && was_there => {
                                if error == -libc::ENODEV { Arrival::Gone } else { Arrival::Broken(-error) }
                            }
                            _ => Arrival::Broken(libc::EPROTO),
                        };
                        prop_assert_eq!(tags.arrived(tag, result), expected);
                        if was_there && result <= 0 {
                            with_driver.retain(|there| *there != tag);
                            if result == 0 { taken.push(tag) } else { gone.push(tag) }
                        }
                    }
                    Op::Answer(tag, result) => {
                        let ours = taken.contains(&tag);
                        prop_assert_eq!(tags.answer(tag, result), ours);
                        if ours {
                            taken.retain(|there| *there != tag);
                            answered.insert(tag, result);
                        }
                    }
                    Op::Submit | Op::PutBack => {
                        prop_assert_eq!(tags.has_answers(), !answered.is_empty());
                        match tags.next_answer() {
                            None => prop_assert!(answered.is_empty()),
                            Some(answer) if matches!(op, Op::PutBack) => tags.put_back(answer),
                            Some(answer) => {
                                prop_assert_eq!(answered.remove(&answer.tag), Some(answer.result));
                                with_driver.push(answer.tag);
                            }
                        }
                    }
                }
                prop_assert_eq!(
                    with_driver.len() + taken.len() + answered.len() + gone.len(),
                    usize::from(DEPTH)
                );
            }
        }
    }
}
