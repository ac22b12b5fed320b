//! Traces that other tools have written, in every format and compression.

use std::io::Cursor;

use surgetank_model::Bytes;
use surgetank_trace::{Broken, Format, Keys, Only, Options, Parser, Reader, Request, Tally, TraceError};

use crate::input::Input;

const REQUESTS_MAX: usize = 10_000;

/// A text or binary trace, cut into pieces: the same requests, tally and error however it is cut.
pub fn traces(data: &[u8]) {
    let mut input = Input(data);
    let (_, format) = Format::NAMES[usize::from(input.byte()) % Format::NAMES.len()];
    let strict = input.byte() % 2 == 1;
    let piece = usize::from(input.u16()) % 300 + 1;
    let bytes = input.0;
    if let (Some(whole), Some(cut)) =
        (parse(format, strict, bytes, bytes.len().max(1)), parse(format, strict, bytes, piece))
    {
        assert_eq!(whole.1.is_err(), strict && whole.2.broken > 0);
        assert_eq!(whole.2.first_broken.is_some(), whole.2.broken > 0);
        for request in whole.0.iter().take(8) {
            let mut blocks = 0;
            let keys = Keys { block: Some(Bytes::new(4096)), only: Only::All };
            keys.of(request, |_| blocks += 1);
            assert!(blocks > 0 && blocks <= request.length.get() / 4096 + 2);
        }
        assert_eq!(whole, cut);
    }
    // Any format, or none, but no panic.
    let _ = Format::of_head(bytes);
}

type Parsing = (Vec<Request>, Result<(), Broken>, Tally);

fn parse(format: Format, strict: bool, bytes: &[u8], piece: usize) -> Option<Parsing> {
    let mut parser = Parser::new(format, bytes, strict).ok()?;
    let mut found = Vec::new();
    let (mut taken, mut shown) = (0, 0);
    let mut result = Ok(());
    while result.is_ok() && taken < bytes.len() {
        shown = (shown + piece).min(bytes.len());
        let sink = |request| found.extend((found.len() < REQUESTS_MAX).then_some(request));
        match parser.parse(&bytes[taken..shown], shown == bytes.len(), sink) {
            Ok(count) => taken += count,
            Err(broken) => result = Err(broken),
        }
    }
    Some((found, result, parser.tally().clone()))
}

/// A compressed file of whatever format: requests or one sentence, in bounded memory.
pub fn packed(data: &[u8]) {
    let told = |error: TraceError| {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
    };
    let mut reader = match Reader::from_stream("trace", Cursor::new(data.to_vec()), Options::default()) {
        Ok(reader) => reader,
        Err(error) => return told(error),
    };
    // A few bytes may unpack to very many.
    for _ in 0..16 {
        match reader.read(|_| ()) {
            Ok(true) => {}
            Ok(false) => return drop(reader.finish().map_err(told)),
            Err(error) => return told(error),
        }
    }
}
