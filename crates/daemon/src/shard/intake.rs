//! What clients have asked for, between the front and the engine: the engine is given pieces, in the clients' turns, and
//! the front is answered when the last piece of a request has ended.

use surgetank_cache::ReplyError;
use surgetank_device::{Buffer, BufferSlice, Submission, Token};
use surgetank_model::{ClientId, Instant, Operation, Request, RequestId};
use surgetank_policy::fair::{FairQueue, Piece, Windows};

/// A request whose answer the front waits for.
#[derive(Debug)]
struct Asked {
    token: Token,
    is_read: bool,
    buffer: Option<Buffer>,
    /// Pieces that the engine has.
    out: u32,
    /// More pieces are to come.
    unfinished: bool,
    /// The first failure of a piece.
    result: Result<(), ReplyError>,
}

/// An answer for the front.
#[derive(Debug)]
pub(super) struct RequestAnswer {
    pub(super) token: Token,
    pub(super) is_read: bool,
    pub(super) result: Result<(), ReplyError>,
    pub(super) buffer: Option<Buffer>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Intake {
    queue: FairQueue,
    /// Indexed by the names that the queue uses.
    asked: Vec<Option<Asked>>,
    free: Vec<u64>,
}

impl Intake {
    pub(super) fn new(windows: Windows) -> Self {
        Self { queue: FairQueue::new(windows), asked: Vec::new(), free: Vec::new() }
    }

    pub(super) fn set_windows(&mut self, windows: Windows) {
        self.queue.set_windows(windows);
    }

    /// Whether every request has been answered.
    pub(super) fn is_empty(&self) -> bool {
        self.asked.len() == self.free.len()
    }

    /// When [`Intake::next`] may have something although nothing has happened.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue.next_deadline()
    }

    /// A client asks for something.
    pub(super) fn submit(&mut self, now: Instant, submission: Submission) {
        let Submission { token, client, operation, offset, length, buffer } = submission;
        let is_read = operation == Operation::Read;
        let asked = Some(Asked { token, is_read, buffer, out: 0, unfinished: true, result: Ok(()) });
        let name = match self.free.pop() {
            Some(name) => {
                self.asked[name as usize] = asked;
                name
            }
            None => {
                self.asked.push(asked);
                self.asked.len() as u64 - 1
            }
        };
        self.queue.push(now, client, Request { id: RequestId(name), operation, offset, length });
    }

    /// What the engine is to be given now, with its memory.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Piece, Option<BufferSlice>)> {
        let piece = self.queue.next(now)?;
        let asked = self.asked.get_mut(piece.request.0 as usize)?.as_mut()?;
        asked.out += 1;
        asked.unfinished = !piece.last;
        // A request with memory is no longer than its memory, which has a place in this machine.
        let memory = asked.buffer.as_ref().map(|buffer| buffer.slice(piece.before as usize, piece.length as usize));
        Some((piece, memory))
    }

    /// A piece has ended, and nobody else has a handle on its memory any more.
    pub(super) fn ended(
        &mut self,
        request: RequestId,
        serial: u64,
        result: Result<(), ReplyError>,
    ) -> Option<RequestAnswer> {
        self.queue.ended(serial);
        let asked = self.asked.get_mut(request.0 as usize)?.as_mut()?;
        asked.out -= 1;
        asked.result = asked.result.and(result);
        self.answer(request)
    }

    /// A client has left: what the engine has not been given yet of its requests it will not be given.
    pub(super) fn leave(&mut self, client: ClientId) -> Vec<RequestAnswer> {
        let dropped = self.queue.leave(client);
        dropped.into_iter().filter_map(|request| self.drop_rest(request)).collect()
    }

    fn drop_rest(&mut self, request: RequestId) -> Option<RequestAnswer> {
        let asked = self.asked.get_mut(request.0 as usize)?.as_mut()?;
        asked.unfinished = false;
        asked.result = asked.result.and(Err(ReplyError::Stopping));
        self.answer(request)
    }

    /// Everything that was not answered.
    pub(super) fn abandon(&mut self) -> Vec<RequestAnswer> {
        let all = self.asked.drain(..).flatten();
        let answers = all.map(|Asked { token, is_read, buffer, .. }| RequestAnswer {
            token,
            is_read,
            result: Err(ReplyError::Stopping),
            buffer,
        });
        let answers = answers.collect();
        self.free.clear();
        answers
    }

    /// The answer, if no piece is out or to come.
    fn answer(&mut self, request: RequestId) -> Option<RequestAnswer> {
        let place = self.asked.get_mut(request.0 as usize)?;
        let Asked { token, is_read, buffer, result, .. } =
            place.take_if(|asked| asked.out == 0 && !asked.unfinished)?;
        self.free.push(request.0);
        Some(RequestAnswer { token, is_read, result, buffer })
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::Limits;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn submission(token: u64, client: u64, operation: Operation, length: u64) -> Submission {
        let (token, client) = (Token(token), ClientId(client));
        Submission { token, client, operation, offset: 0, length, buffer: None }
    }

    fn intake() -> Intake {
        Intake::new(Windows::new(Limits::NONE, false))
    }

    #[test]
    fn a_request_is_answered_once_with_the_first_failure_of_its_pieces() {
        let mut intake = intake();
        intake.submit(Instant::ZERO, submission(7, 1, Operation::WriteZeroes { fua: false }, 3 * MIB));
        let pieces: Vec<Piece> = std::iter::from_fn(|| intake.next(Instant::ZERO)).map(|(piece, _)| piece).collect();
        assert_eq!(pieces.len(), 3);
        let mut ended = |index: usize, result| intake.ended(pieces[index].request, pieces[index].serial, result);
        assert!(ended(2, Ok(())).is_none());
        assert!(ended(0, Err(ReplyError::NoSpace)).is_none());
        let answer = ended(1, Err(ReplyError::Io)).unwrap();
        assert_eq!((answer.token, answer.result), (Token(7), Err(ReplyError::NoSpace)));
        assert!(intake.is_empty());
    }

    #[test]
    fn who_leaves_is_answered_when_what_the_engine_has_of_it_has_ended() {
        let mut intake = intake();
        for token in 0..3 {
            intake.submit(Instant::ZERO, submission(token, 1, Operation::WriteZeroes { fua: false }, 20 * MIB));
        }
        let begun: Vec<Piece> = std::iter::from_fn(|| intake.next(Instant::ZERO)).map(|(piece, _)| piece).collect();
        assert_eq!(begun.len(), 16, "what is in service at a time");
        let tokens: Vec<u64> = intake.leave(ClientId(1)).iter().map(|answer| answer.token.0).collect();
        assert_eq!(tokens, [1, 2]);
        assert!(intake.next(Instant::ZERO).is_none());
        let last: Vec<RequestAnswer> =
            begun.iter().filter_map(|piece| intake.ended(piece.request, piece.serial, Ok(()))).collect();
        assert_eq!((last.len(), last[0].result), (1, Err(ReplyError::Stopping)));
        assert!(intake.is_empty());
    }
}
